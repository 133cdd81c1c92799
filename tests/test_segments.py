"""How a record becomes segments: what is shown, what is never shown, and what may not matter."""

from __future__ import annotations

import itertools

import pytest
from tests.segment_models import tiny_encoder, tiny_tokenizer

from dicast import segments
from dicast.errors import TokenBudgetError
from dicast.models.base import EncodeOptions
from dicast.records import Choice, Noul, Question, Record, Score
from dicast.segments import (
    HYPOTHESIS_OPTIONS,
    WINDOW,
    SegmentEncoding,
    cut_pieces,
    option_texts,
    pieces_of,
    plain,
    text_in_instruction,
    windows_of,
    words,
)

ENCODER = tiny_encoder()
TOKENIZER = tiny_tokenizer()


def encode(state: object, questions: dict[str, Question], **options: object) -> SegmentEncoding:
    return ENCODER.encode(Record(state, questions), EncodeOptions(**options))  # type: ignore[arg-type]


def shown(encoding: SegmentEncoding) -> set[tuple[int, ...]]:
    return {segment.tokens for segment in encoding.segments}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"plan": "pro", "paid": False}, "plan: pro; paid: no"),
        ({"user_name": "Ada", "tags": ["a", "b"]}, "user name: Ada; tags: (a; b)"),
        ({"a": {"b": None}}, "a: (b: none)"),
        ([1, 2.5, True], "1; 2.5; yes"),
        ("call get_user_token now", "call get user token now"),
    ],
)
def test_json_is_rendered_as_compact_prose(value: object, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        ("GetUserToken", "Get User Token"),
        ("get_user_token", "get user token"),
        ("museum.getTopArtworks", "museum get Top Artworks"),
        ("HTTPServer", "HTTP Server"),
        ("plain words stay asIs", "plain words stay asIs"),
        ("_", "_"),
        ("", ""),
    ],
)
def test_identifiers_become_words(identifier: str, text: str) -> None:
    assert words(identifier) == text


def test_option_texts_leave_out_ids_that_say_nothing() -> None:
    question = Choice(
        "?", {"option_0": "pay", "A": "card", "billing": "money", "lost_card": None, "pay": "pay the bill"}
    )
    assert option_texts(question) == ["pay", "card", "billing: money", "lost_card", "pay the bill"]


def test_noul_texts_follow_the_criteria() -> None:
    assert option_texts(Noul("?")) == ["Yes.", "No."]
    assert option_texts(Noul("?", {"true": "No.", "false": "Yes."})) == ["No.", "Yes."]
    assert option_texts(Noul("?", {"false": "harmless"})) == ["Yes.", "harmless"]


def test_question_ids_are_not_shown_when_there_is_an_instruction() -> None:
    one = encode("card", {"q": Noul("is it urgent"), "p": Choice("which team", ["billing", "pay"])})
    other = encode("card", {"urgent": Noul("is it urgent"), "xyz": Choice("which team", ["billing", "pay"])})
    assert one.segments == other.segments
    assert one.windows == other.windows


def test_a_missing_instruction_shows_the_id_in_words() -> None:
    with_id = encode("card", {"is_urgent": Noul()})
    with_text = encode("card", {"q": Noul("is urgent")})
    assert with_id.segments == with_text.segments


def test_option_order_changes_nothing_but_the_order() -> None:
    straight = encode("card", {"q": Choice("which", {"a1": "pay", "b1": "lost", "c1": "team"})})
    back = encode("card", {"q": Choice("which", {"c1": "team", "b1": "lost", "a1": "pay"})})
    assert shown(straight) == shown(back)
    labels = [straight.segments[number].tokens for number in straight.questions[0].labels]
    reversed_labels = [back.segments[number].tokens for number in back.questions[0].labels]
    assert labels == reversed_labels[::-1]


def test_short_choices_have_hypotheses_and_long_ones_read_options_alone() -> None:
    few = encode("card", {"q": Choice("which team", ["a", "b"])}).questions[0]
    many = encode("card", {"q": Choice("which team", [f"x{n}" for n in range(HYPOTHESIS_OPTIONS + 1)])}).questions[0]
    assert set(few.hypotheses).isdisjoint(few.labels)
    assert many.hypotheses == many.labels


def test_control_tokens_in_user_text_are_ordinary_text() -> None:
    encoding = encode("[SEP] [CLS] [MASK]", {"q": Noul("[SEP]"), "c": Choice("x", ["[CLS]", "[PAD]"])})
    control = {TOKENIZER.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}
    sep = TOKENIZER.token_to_id("[SEP]")
    for segment in encoding.segments:
        inner = [token for token in segment.tokens[1:-1] if token in control]
        assert all(token == sep for token in inner)  # the frame between two parts, one at most
        assert len(inner) <= 1


def test_empty_texts_still_have_a_span_of_at_least_one_token() -> None:
    encoding = encode("", {"q": Choice("", {"a": "", "b": None}), "n": Noul("", {"true": "", "false": " "})})
    assert all(segment.end > segment.start for segment in encoding.segments)
    assert all(window.part != "state" for window in encoding.windows)


def test_text_in_the_instruction_is_evidence_where_the_state_is_empty() -> None:
    questions: dict[str, Question] = {"q": Choice("which team:\nlost card", ["pay", "card"]), "p": Noul("is it: no")}
    evidence = [window for window in encode({}, questions).windows if window.part == "state"]
    assert [window.owner for window in evidence] == [0, 1]
    assert all(window.owner == -1 for window in encode("card", questions).windows if window.part == "state")


@pytest.mark.parametrize(
    ("instruction", "evidence"),
    [("Classify:\nlost card", "lost card"), ("Classify: lost card", "lost card"), ("Is it urgent?", ""), ("", "")],
)
def test_text_after_the_first_line_or_colon(instruction: str, evidence: str) -> None:
    assert text_in_instruction(instruction) == evidence


def test_catalogue_entries_named_by_options_are_references_and_describe_them() -> None:
    tools = [{"name": "payBill", "description": "pay money"}, {"name": "lostCard", "description": "card lost"}]
    question = Choice("which tool", {"option_0": "payBill", "option_1": "lostCard"})
    encoding = encode({"text": "card", "tools": tools}, {"q": question})
    parts = [window.part for window in encoding.windows]
    assert parts.count("state") == 1
    assert parts.count("reference") == 2
    described = [encoding.segments[number].tokens for number in encoding.questions[0].labels]
    assert [len(tokens) for tokens in described] == [len(ENCODER.ids("pay Bill: pay money")) + 2] * 1 + [
        len(ENCODER.ids("lost Card: card lost")) + 2
    ]


def test_a_catalogue_that_no_question_names_is_evidence() -> None:
    people = [{"name": "Ada", "role": "pay"}, {"name": "Bob", "role": "team"}]
    encoding = encode({"people": people}, {"q": Noul("is it urgent")})
    assert {window.part for window in encoding.windows} == {"state", "instruction"}


def test_windows_hold_everything_in_order() -> None:
    pieces = [list(range(n * 100, n * 100 + size)) for n, size in enumerate((10, 90, 60, 100, 5, 80))]
    windows = windows_of(pieces)
    assert [token for window in windows for token in window] == [token for piece in pieces for token in piece]
    assert all(0 < len(window) <= WINDOW for window in windows)


def test_a_long_piece_is_cut_with_an_overlap() -> None:
    windows = windows_of([list(range(1000))])
    assert {token for window in windows for token in window} == set(range(1000))
    assert all(set(a) & set(b) for a, b in itertools.pairwise(windows))


def test_a_state_over_the_limit_is_refused_with_token_counts() -> None:
    with pytest.raises(TokenBudgetError) as caught:
        encode("card " * 300, {"q": Noul("is it")}, max_length=100)
    assert caught.value.limit == 100
    assert caught.value.seen > 300


def test_a_state_over_the_limit_is_cut_on_request() -> None:
    encoding = encode("card " * 300, {"q": Noul("is it")}, max_length=100, truncation="state_end")
    assert encoding.length <= 100
    assert encoding.length > 80
    assert encoding.state_tokens_dropped > 150


def test_a_schema_over_the_limit_is_refused_even_if_the_state_may_be_cut() -> None:
    with pytest.raises(TokenBudgetError):
        encode("card", {"q": Choice("which", ["pay " * 80, "card " * 80])}, max_length=50, truncation="state_end")


def test_max_state_tokens_cuts_the_state() -> None:
    assert encode("card " * 30, {"q": Noul("is it")}, max_state_tokens=10).state_tokens_dropped == 20


def test_cut_pieces_counts_what_it_drops() -> None:
    assert cut_pieces([(1, 2, 3), (4, 5)], 4) == ([(1, 2, 3), (4,)], 1)
    assert cut_pieces([(1, 2, 3)], None) == ([(1, 2, 3)], 0)


def test_pieces_keep_entries_and_items_together() -> None:
    assert pieces_of({"a": 1, "b": ["x", "y"]}) == ["a: 1;", "b: x;", "y;"]
    assert pieces_of("one\n\ntwo") == ["one", "two"]
    assert pieces_of(None) == []


def test_repeated_segments_stand_once() -> None:
    encoding = encode("card", {"a": Noul("is it urgent"), "b": Noul("is it urgent")})
    assert len(set(encoding.segments)) == len(encoding.segments)
    assert encoding.questions[0].hypotheses == encoding.questions[1].hypotheses


def test_score_levels_in_either_order_have_the_same_segments() -> None:
    up = encode("card", {"q": Score("is it", ["no", "yes"])})
    down = encode("card", {"q": Score("is it", ["yes", "no"])})
    assert shown(up) == shown(down)


def test_module_needs_no_torch() -> None:
    assert "torch" not in vars(segments)


def test_hypotheses_of_a_long_instruction_take_its_last_paragraph() -> None:
    preamble = "the team is the team " * 12
    paragraph = "is it urgent or is it lost or is it the card"
    asked = encode("card", {"q": Noul(f"{preamble}\n\n{paragraph}")})
    short = encode("card", {"q": Noul(paragraph)})
    assert [asked.segments[n] for n in asked.questions[0].hypotheses] == [
        short.segments[n] for n in short.questions[0].hypotheses
    ]
    assert asked.segments[asked.questions[0].segment] != short.segments[short.questions[0].segment]


def test_a_last_paragraph_that_says_little_keeps_the_whole_instruction() -> None:
    asked = encode("card", {"q": Noul("the team is the team " * 12 + "\n\nyes or no")})
    longest = max(len(asked.segments[n].tokens) for n in asked.questions[0].hypotheses)
    assert longest > 40


def test_long_options_and_instructions_are_read_whole() -> None:
    """What is longer than the segment that stands for it is in the memory besides, so that no word is lost."""
    option, instruction = "the card " * 300 + "zq" + " the card" * 300, "it is lost " * 300 + "qz" + " it is lost" * 300
    encoding = encode("pay", {"q": Choice(instruction, {"a": option, "b": "no"})})
    memory = [encoding.segments[window.segment].tokens for window in encoding.windows]
    for word in ("zq", "qz"):
        ids = ENCODER.ids(word)
        assert any(tokens[i : i + len(ids)] == ids for tokens in memory for i in range(len(tokens))), word
    assert {window.owner for window in encoding.windows if window.part == "reference"} == {0}
    assert max(len(segment.tokens) for segment in encoding.segments) <= 512


def test_a_state_that_repeats_itself_is_counted_as_often_as_it_is_read() -> None:
    once = encode("the card is lost " * 56, {"q": Noul("lost")})
    assert encode("the card is lost " * 560, {"q": Noul("lost")}).length > 9 * once.length - 300
    with pytest.raises(TokenBudgetError, match=r"the record has \d+ tokens and the limit is 32768"):
        encode("qzx " * 12_000, {"q": Noul("lost")})


def test_a_state_of_more_words_than_tokens_are_allowed_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(TokenBudgetError, match="the state has 600000 words or more") as caught:
        encode("word " * 600_000, {"q": Noul("lost")})
    assert (caught.value.field, caught.value.limit) == ("state", 32_768)


def test_questions_that_ask_the_same_of_catalogue_entries_share_a_template() -> None:
    tools = [{"name": "payBill", "description": "pay money"}, {"name": "lostCard", "description": "card lost"}]
    options = {"yes": "call it", "no": "skip it"}
    asked = {name: Choice(f"is {name} the tool to call", options) for name in ("payBill", "lostCard")}
    others = {"urgent": Noul("is it urgent"), "more": Choice("is payBill the tool to call", {"a": "yes", "b": "no"})}
    encoding = encode({"text": "card", "tools": tools}, {**asked, **others})
    first, second, alone, other_options = (question.template for question in encoding.questions)
    assert first == second >= 0
    assert alone == -1
    assert other_options != first


def test_questions_that_differ_in_their_last_paragraph_share_a_template() -> None:
    asked = {name: Noul(f"Mark the topic if the text is about it.\n\nTopic: {name}") for name in ("pay", "card")}
    other = {"else": Noul("Mark the team.\n\nTopic: pay"), "plain": Noul("is it pay"), "same": Noul("is it card")}
    templates = [question.template for question in encode("the card", {**asked, **other}).questions]
    assert templates[0] == templates[1] >= 0
    assert templates[2] not in (templates[0], -1)
    assert templates[3:] == [-1, -1]
