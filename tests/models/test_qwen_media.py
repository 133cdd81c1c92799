"""Media of a Clef checkpoint: times, positions, budget and features, against the processor and backbone of
transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.golden_cases import CASES, RELEASE, media_of
from tests.media.samples import data_url, encoded, gradient, video

from dicast.batching import collate
from dicast.checkpoints import load_clef
from dicast.encoding import MediaEncoding
from dicast.errors import CapabilityError, MediaError, TokenBudgetError
from dicast.media import Video, decode_video
from dicast.model import DecisionModel
from dicast.models import qwen_media
from dicast.models.base import EncodeOptions
from dicast.models.clef import ClefModel
from dicast.models.qwen_media import QwenMediaReader
from dicast.models.qwen_positions import batch_positions
from dicast.records import Choice, Noul, Record, as_questions

MEDIA_CASES = [case for case in CASES if "media" in case]
QUESTIONS = {"q": Noul("Is it red?")}


@pytest.fixture(scope="module")
def model() -> ClefModel:
    model = load_clef(RELEASE, device="cpu", dtype="float32")
    model.network.double()
    return model


@pytest.fixture(scope="module")
def reader(model: ClefModel) -> QwenMediaReader:
    media = model.encoder._media
    assert isinstance(media, QwenMediaReader)
    return media


@pytest.fixture(scope="module")
def processor(reader: QwenMediaReader) -> Any:
    return reader._processor


def record(**media: Any) -> Record:
    return Record("state", QUESTIONS, **media)


def of_case(case: dict[str, Any]) -> Record:
    return Record(case["request"]["state"], as_questions(case["request"]["questions"]), **media_of(case))


def clip(times: Sequence[float] | None, size: int = 64, seed: int = 0) -> Video:
    count = 6 if times is None else len(times)
    frames = np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)
    return Video(frames, None if times is None else tuple(times))


def text_of(processor: Any, encoding: MediaEncoding) -> str:
    text: str = processor.tokenizer.decode(list(encoding.ids))
    return text.replace("<|video_pad|>", "").replace("<|vision_start|>", "").replace("<|vision_end|>", "").strip()


def equal(ours: MediaEncoding, theirs: Any) -> None:
    assert list(ours.ids) == theirs["input_ids"][0].tolist()
    assert list(ours.token_types) == theirs["mm_token_type_ids"][0].tolist()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs[name]), name


# What the processor is given


@pytest.mark.parametrize("case", MEDIA_CASES, ids=lambda case: case["name"])
def test_golden_media_are_what_the_processor_makes_of_them(
    case: dict[str, Any], reader: QwenMediaReader, processor: Any
) -> None:
    media = media_of(case)
    text = "<|vision_start|><|image_pad|><|vision_end|>" * len(media["images"])
    text += "<|vision_start|><|video_pad|><|vision_end|>" * len(media["videos"]) + "\n"
    theirs = processor(
        text=[text],
        images=media["images"] or None,
        videos=media["videos"] or None,
        return_tensors="pt",
        **media["media_kwargs"],
    )
    equal(reader(of_case(case)), theirs)


@pytest.mark.parametrize("case", MEDIA_CASES, ids=lambda case: case["name"])
def test_ids_and_spans_equal_the_reference_behind_media(case: dict[str, Any], model: ClefModel) -> None:
    encoding = model.encode(of_case(case), EncodeOptions("state_end", case["max_length"], control_tokens="parse"))
    assert encoding.ids.tolist() == case["input_ids"]
    for ours, theirs in zip(encoding.questions, case["questions"], strict=True):
        assert list(ours.question_span) == theirs["question_span"]
        assert [list(span) for span in ours.option_spans] == theirs["option_spans"]
        assert list(ours.options) == theirs["option_ids"]


@pytest.mark.parametrize("count", [1, 3, 5, 16, 59, 100])
@pytest.mark.parametrize("options", [{}, {"do_sample_frames": False}, {"fps": 4}])
def test_bare_arrays_are_treated_as_the_reference_treats_them(
    count: int, options: dict[str, Any], reader: QwenMediaReader, processor: Any
) -> None:
    frames = np.random.default_rng(count).integers(0, 256, (count, 32, 48, 3), np.uint8)
    text = ["<|vision_start|><|video_pad|><|vision_end|>\n"]
    if count == 1:
        with pytest.raises(MediaError, match=r"videos: the processor refuses .* must be larger than temporal_factor"):
            reader(record(videos=[frames], media_kwargs=options))
        return
    theirs = processor(text=text, videos=[frames], return_tensors="pt", **options)
    equal(reader(record(videos=[frames], media_kwargs=options)), theirs)


def test_real_times_are_shown(reader: QwenMediaReader, processor: Any) -> None:
    shown = text_of(processor, reader(record(videos=[clip([0.0, 0.5, 1.0, 7.25, 20.0, 21.0])])))
    assert shown == "<0.2 seconds><4.1 seconds><20.5 seconds>"
    odd = text_of(processor, reader(record(videos=[clip([0.0, 3.0, 60.0])])))
    assert odd == "<1.5 seconds><60.0 seconds>"


def test_a_decoded_file_is_shown_as_it_was_sampled(reader: QwenMediaReader, processor: Any) -> None:
    file = decode_video(video(40, rate=10))
    assert len(file) == 8
    encoding = reader(record(videos=[file]))
    assert encoding.tensors["video_grid_thw"].tolist()[0][0] == 4
    assert text_of(processor, encoding) == "<0.3 seconds><1.4 seconds><2.5 seconds><3.6 seconds>"


def test_a_video_of_one_frame_is_shown(reader: QwenMediaReader, processor: Any) -> None:
    encoding = reader(record(videos=[decode_video(video(1))]))
    assert encoding.tensors["video_grid_thw"].tolist()[0][0] == 1
    assert text_of(processor, encoding) == "<0.0 seconds>"


def test_videos_with_and_without_times_in_one_record(reader: QwenMediaReader, processor: Any) -> None:
    array = clip(None).frames
    shown = text_of(processor, reader(record(videos=[array, clip([0.0, 9.0]), array])))
    alone = text_of(processor, reader(record(videos=[array])))
    assert shown == f"{alone}<4.5 seconds>{alone}"


def test_callers_may_give_the_processor_s_own_metadata(reader: QwenMediaReader, processor: Any) -> None:
    metadata = {"total_num_frames": 6, "fps": 2.0, "frames_indices": [0, 2, 4, 6, 8, 10]}
    options = {"do_sample_frames": False, "video_metadata": [metadata]}
    shown = text_of(processor, reader(record(videos=[clip(None)], media_kwargs=options)))
    assert shown == "<0.5 seconds><2.5 seconds><4.5 seconds>"


def test_sources_are_decoded_where_nobody_has_done_so(reader: QwenMediaReader, tmp_path: Path) -> None:
    data, film = encoded(gradient()), video(8)
    (tmp_path / "a.png").write_bytes(data)
    (tmp_path / "a.mp4").write_bytes(film)
    expected = reader(record(images=[gradient()], videos=[decode_video(film)]))
    for picture, moving in ((data, film), (data_url(data), str(tmp_path / "a.mp4")), (tmp_path / "a.png", film)):
        assert reader(record(images=[picture], videos=[moving])).key == expected.key


def test_what_the_processor_refuses_is_a_media_error(reader: QwenMediaReader) -> None:
    with pytest.raises(MediaError, match="aspect ratio"):
        reader(record(images=[Image.new("RGB", (3000, 4))]))
    with pytest.raises(MediaError, match="mutually exclusive"):
        reader(record(videos=[clip(None)], media_kwargs={"num_frames": 3}))


# Budget


def test_media_that_do_not_fit_are_refused_with_the_numbers_before_any_pixel(
    model: ClefModel, reader: QwenMediaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("pixels were prepared")

    monkeypatch.setattr(reader, "_processor", fail)
    pictures = [Image.new("RGB", (64, 64)), Image.new("RGB", (192, 192))]
    with pytest.raises(TokenBudgetError, match=r"images\.1: .* need 40 tokens, of which 192x192 needs 36") as caught:
        model.encode(record(images=pictures), EncodeOptions(max_length=39))
    assert (caught.value.limit, caught.value.seen) == (39, 40)
    with pytest.raises(TokenBudgetError, match=r"videos\.0: .* 6 frames of 64x64 needs 12"):
        model.encode(record(videos=[clip([0, 1, 2, 3, 4, 5])]), EncodeOptions(max_length=11))


def test_media_count_as_tokens_of_the_record(model: ClefModel) -> None:
    picture = Image.new("RGB", (192, 192))
    whole = model.encode(record(images=[picture]))
    assert whole.media_tokens == 36 + 3
    assert whole.length == model.encode(record()).length + 39
    with pytest.raises(TokenBudgetError, match="39 of them for images and videos"):
        model.encode(record(images=[picture]), EncodeOptions(max_length=100))


# Positions


@pytest.mark.parametrize("case", MEDIA_CASES, ids=lambda case: case["name"])
def test_positions_equal_transformers(case: dict[str, Any], model: ClefModel) -> None:
    check_positions(model, [of_case(case)])


def test_positions_in_a_padded_batch(model: ClefModel) -> None:
    mixed = record(images=[gradient(300, 60)], videos=[clip([0, 1, 2, 3, 4]), clip([0, 1], size=96)])
    check_positions(model, [of_case(MEDIA_CASES[0]), record(), mixed])


def check_positions(model: ClefModel, records: list[Record]) -> None:
    encodings = [model.encode(entry) for entry in records]
    batch = collate(encodings, pad_id=model.pad_id)
    types = torch.zeros(batch.ids.shape, dtype=torch.long)
    grids: dict[str, list[torch.Tensor]] = {"image_grid_thw": [], "video_grid_thw": []}
    for row, offset, media in batch.media:
        types[row, offset : offset + len(media.token_types)] = torch.tensor(media.token_types)
        for name, parts in grids.items():
            if name in media.tensors:
                parts.append(media.tensors[name])
    theirs, deltas = model.network.backbone.model.model.get_rope_index(
        torch.from_numpy(batch.ids),
        types,
        attention_mask=torch.from_numpy(batch.mask).long(),
        **{name: torch.cat(parts) if parts else None for name, parts in grids.items()},
    )
    ours = batch_positions(batch, 2)
    for row, encoding in enumerate(encodings):
        assert np.array_equal(ours[:, row, : encoding.length], theirs[:, row, : encoding.length].numpy())
        assert ours[0, row, encoding.length - 1] == encoding.length - 1 + int(deltas[row])


def test_positions_behind_a_cached_prefix_go_on_where_it_ended(model: ClefModel) -> None:
    encodings = [model.encode(of_case(case)) for case in MEDIA_CASES[:2]]
    whole = batch_positions(collate(encodings, pad_id=model.pad_id), 2)
    starts = [encoding.prefix_length for encoding in encodings]
    rest = batch_positions(collate(encodings, pad_id=model.pad_id, starts=starts), 2)
    for row, (encoding, start) in enumerate(zip(encodings, starts, strict=True)):
        assert np.array_equal(rest[:, row, : encoding.length - start], whole[:, row, start : encoding.length])


# Features and answers


def logits(model: ClefModel, records: Sequence[Record], **options: Any) -> list[np.ndarray]:
    encodings = [model.encode(entry, EncodeOptions(**options)) for entry in records]
    return [np.concatenate(values) for values in model.score(encodings)]


def test_a_batch_of_text_images_and_videos_equals_single_answers(model: ClefModel) -> None:
    records = [
        record(images=[gradient(300, 60)]),
        record(),
        record(videos=[clip([0, 1, 2, 3, 4])], images=[gradient(), gradient(100, 90)]),
        Record("longer state " * 20, QUESTIONS | {"c": Choice("Which?", ["a", "b"])}, videos=[clip([0, 5])]),
    ]
    for together, entry in zip(logits(model, records), records, strict=True):
        np.testing.assert_allclose(together, logits(model, [entry])[0], atol=1e-9)


def test_each_picture_matters(model: ClefModel) -> None:
    first, second = logits(model, [record(images=[gradient()]), record(images=[gradient().rotate(180)])])
    assert np.abs(first - second).max() > 1e-6


def test_the_same_picture_is_seen_once_per_batch(model: ClefModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    tower = model.network.backbone.model.model
    real = tower.get_image_features
    monkeypatch.setattr(
        tower, "get_image_features", lambda pixels, *a, **k: seen.append(len(pixels)) or real(pixels, *a, **k)
    )
    logits(model, [record(images=[gradient()])] * 3 + [record()])
    once = seen.pop()
    logits(model, [record(images=[gradient()]), record(images=[gradient().rotate(180)])])
    assert seen == [2 * once]


def test_questions_asked_one_by_one_prepare_a_picture_once(reader: QwenMediaReader) -> None:
    assert reader(record(images=[gradient(90, 70)])) is reader(record(images=[gradient(90, 70)]))
    assert reader(record(images=[gradient(90, 70)])) is not reader(record(images=[gradient(90, 71)]))


def test_prepared_pixels_are_kept_within_bounds(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = QwenMediaReader(processor)
    one = qwen_media._bytes_of(reader(record(images=[gradient(90, 70)])))
    monkeypatch.setattr(qwen_media, "CACHE_BYTES", 2 * one)
    for degrees in (0, 90, 180, 270):
        reader(record(images=[gradient(90, 90).rotate(degrees)]))
    assert 1 <= len(reader._cache) <= 2
    monkeypatch.setattr(qwen_media, "CACHE_BYTES", 0)
    assert reader(record(images=[gradient(90, 70)])).ids
    assert not reader._cache


def test_the_key_of_the_media_holds_pixels_times_and_options() -> None:
    def key(picture: Any = None, moving: Any = None, **options: Any) -> str:
        return qwen_media.media_key([] if picture is None else [picture], [] if moving is None else [moving], options)

    changed = gradient()
    changed.putpixel((0, 0), (1, 2, 3))
    keys = [
        key(gradient()),
        key(changed),
        key(gradient().convert("L")),
        key(gradient(), size=5),
        key(moving=clip([0, 1])),
        key(moving=clip([0, 2])),
        key(moving=replace(clip([0, 1]), frames=clip([0, 1], seed=1).frames)),
    ]
    assert len(set(keys)) == len(keys)
    assert key(gradient()) == keys[0]


def test_placeholder_tokens_in_a_text_stay_text(model: ClefModel) -> None:
    """The reference fails here; in a batch it would fail for the neighbours too."""
    hostile = Record("<|image_pad|><|video_pad|>", QUESTIONS, images=[gradient()])
    plain = record(images=[gradient()])
    both = logits(model, [hostile, plain], control_tokens="parse")
    assert np.isfinite(both[0]).all()
    np.testing.assert_allclose(both[1], logits(model, [plain])[0], atol=1e-9)


# The Python API


def test_decide_takes_files_and_reports_media_tokens(model: ClefModel, tmp_path: Path) -> None:
    decider = DecisionModel(model)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(gradient(192, 192)))
    decision = decider.decide("state", QUESTIONS, images=[path], videos=[video(4)])
    alone = decider.decide("state", QUESTIONS, images=[gradient(192, 192)])
    assert alone.usage.media_tokens == 39
    assert decision.usage.media_tokens > 39
    small = decider.decide("state", QUESTIONS, images=[path], media_kwargs={"max_pixels": 4096})
    assert small.usage.media_tokens == 4 + 3
    as_dict = {"state": "state", "questions": QUESTIONS, "images": [data_url(path.read_bytes())]}
    assert decider.decide_batch([as_dict])[0].usage == alone.usage


def test_isolated_questions_see_the_same_picture(model: ClefModel) -> None:
    decider = DecisionModel(model)
    questions = QUESTIONS | {"c": Choice("Which?", ["a", "b"])}
    isolated = decider.decide("state", questions, images=[gradient()], isolate=True)
    alone = decider.decide("state", {"q": questions["c"]}, images=[gradient()])
    assert isolated["c"].probabilities == pytest.approx(alone["q"].probabilities, abs=1e-9)


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        (["missing.png"], {}, r"images\.0: cannot read 'missing.png'"),
        ([gradient(), b""], {}, r"images\.1: is empty"),
        ("a.png", {}, "images: must be a list of images, not str"),
        ([gradient()], {"max_pixels": "many"}, r"media_kwargs\.max_pixels"),
        ([gradient()], {"max_pixels": 10}, "1024"),
    ],
)
def test_bad_media_are_named(model: ClefModel, images: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(MediaError, match=said):
        DecisionModel(model).decide("state", QUESTIONS, images=images, media_kwargs=options)


@pytest.mark.parametrize("field", ["images", "videos"])
def test_a_text_model_names_one_that_can_see(model: ClefModel, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "info", replace(model.info, name="blind", images=False, videos=False))
    with pytest.raises(CapabilityError, match=f"{field}: blind does not read {field}.*Cloudflare/clef-flash"):
        DecisionModel(model).decide("state", QUESTIONS, **{field: [b"never decoded"]})


def test_a_prefix_that_ends_within_the_media_needs_only_the_rest(model: ClefModel) -> None:
    encoding = model.encode(record(images=[gradient(300, 60)], videos=[clip([0, 1, 2, 3])]))
    backbone = model.network.backbone
    batch = collate([encoding], pad_id=model.pad_id)
    whole = backbone.embed(torch.from_numpy(batch.ids), batch)
    for start in (
        0,
        encoding.media_offset,
        encoding.media_offset + 5,
        encoding.prefix_length - 3,
        encoding.prefix_length,
    ):
        rest = collate([encoding], pad_id=model.pad_id, starts=[start])
        assert torch.equal(backbone.embed(torch.from_numpy(rest.ids), rest), whole[:, start:])
