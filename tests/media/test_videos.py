"""decode_video: frames evenly spread over the whole video with their real times; everything else refused by name."""

from __future__ import annotations

import builtins
import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.media.samples import animation, data_url, encoded, gradient, silent, video

from dicast.errors import MediaError, MissingDependencyError
from dicast.media import MediaLimits, Video, containers, decode_video, sample_indices
from dicast.media.sampling import Plan

CODECS = [
    ("mp4", "libx264"),
    ("mp4", "mpeg4"),
    ("mov", "libx264"),
    ("webm", "libvpx"),
    ("webm", "libvpx-vp9"),
    ("matroska", "libx264"),
    ("avi", "mpeg4"),
]


def refused(source: object, **options: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        decode_video(source, name="videos.2", **options)
    assert caught.value.field.startswith("videos.2")
    return caught.value


def shades(clip: Video) -> list[int]:
    return clip.frames[:, 4, 4, 0].astype(int).tolist()


# Encoded videos


@pytest.mark.parametrize(("container", "codec"), CODECS)
def test_two_frames_a_second_from_the_first_to_the_last(container: str, codec: str) -> None:
    clip = decode_video(video(30, rate=10, container=container, codec=codec))
    assert clip.frames.shape == (6, 48, 64, 3)
    assert clip.frames.dtype == np.uint8
    assert clip.timestamps == pytest.approx((0.0, 0.6, 1.2, 1.7, 2.3, 2.9), abs=0.002)
    assert clip.fps == pytest.approx(10)
    assert clip.duration == pytest.approx(3.0)
    assert shades(clip) == pytest.approx([0, 48, 96, 136, 184, 232], abs=6)


def test_at_least_four_frames_when_there_are_as_many() -> None:
    assert len(decode_video(video(10, rate=10))) == 4
    assert len(decode_video(video(3, rate=10))) == 3
    assert len(decode_video(video(1, rate=10))) == 1


def test_rate_and_cap_are_the_callers() -> None:
    data = video(30, rate=10)
    assert len(decode_video(data, fps=5)) == 15
    assert len(decode_video(data, fps=5, max_frames=7)) == 7
    assert len(decode_video(data, max_frames=1)) == 1
    assert len(decode_video(data, fps=5, limits=MediaLimits(max_frames=9))) == 9


def test_sampling_is_the_reference_processors_rule() -> None:
    assert sample_indices(5, 5 / 24, fps=2, least=4, most=768) == [0, 1, 3, 4]
    assert len(sample_indices(48, 48 / 24, fps=2, least=4, most=768)) == 4
    assert len(sample_indices(100, 100 / 24, fps=2, least=4, most=768)) == 8
    assert sample_indices(30, 3.0, fps=2, least=4, most=768) == [0, 6, 12, 17, 23, 29]


def test_a_variable_frame_rate_keeps_its_real_times() -> None:
    times = [0, 100, 200, 1500, 4000, 4100]
    clip = decode_video(video(6, rate=10, container="matroska", times=times), fps=10)
    assert clip.timestamps == pytest.approx([0.0, 0.1, 0.2, 1.5, 4.0, 4.1], abs=0.002)
    assert shades(clip) == pytest.approx([0, 8, 16, 24, 32, 40], abs=4)


def test_every_source_gives_the_same_video(tmp_path: Any) -> None:
    data = video(8)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    expected = decode_video(data)
    for source in (path, str(path), io.BytesIO(data), data_url(data, "video/mp4")):
        clip = decode_video(source)
        assert np.array_equal(clip.frames, expected.frames)
        assert clip.timestamps == expected.timestamps
    assert decode_video(expected) is expected


@pytest.mark.parametrize(("degrees", "turn"), [(-90, Image.Transpose.ROTATE_270), (180, Image.Transpose.ROTATE_180)])
def test_a_turned_camera(degrees: int, turn: Image.Transpose) -> None:
    import av

    buffer, picture = io.BytesIO(), gradient(64, 48)
    with silent(), av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=10, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        stream.set_display_rotation(degrees)
        output.mux(stream.encode(av.VideoFrame.from_image(picture)))
        output.mux(stream.encode())
    shown = decode_video(buffer.getvalue()).frames[0].astype(int)
    expected = np.asarray(picture.transpose(turn)).astype(int)
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).mean() < 8


def test_a_stream_that_changes_its_size_keeps_the_first() -> None:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as output:
        stream = output.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for index in range(8):
            packet = av.Packet(encoded(gradient(64, 48) if index < 4 else gradient(32, 40), "JPEG"))
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 10), True
            packet.pts = packet.dts = index
            output.mux(packet)
    assert decode_video(buffer.getvalue(), fps=10).frames.shape == (8, 48, 64, 3)


def test_max_pixels_bounds_each_frame() -> None:
    clip = decode_video(video(8), max_pixels=2000)
    assert clip.size == (51, 38)


def test_the_pixel_limit_of_a_video_scales_frames_and_drops_none() -> None:
    clip = decode_video(video(8), limits=MediaLimits(video_pixels=8000))
    assert len(clip) == 4
    assert clip.frames[..., 0].size <= 8000


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_images_are_videos_with_their_own_times(kind: str) -> None:
    clip = decode_video(animation(kind, shades=(0, 80, 160, 240), duration=500))
    assert clip.timestamps == (0.0, 0.5, 1.0, 1.5)
    assert clip.duration == 2.0
    assert shades(clip) == [0, 80, 160, 240]


# Frames


def test_frames_with_a_rate() -> None:
    clip = decode_video([gradient(), gradient(), gradient()], source_fps=4)
    assert clip.timestamps == (0.0, 0.25, 0.5)
    assert clip.fps == 4


def test_frames_with_times_on_the_wire() -> None:
    frames = [data_url(encoded(gradient()))] * 3
    clip = decode_video({"frames": frames, "timestamps": [0.5, 1.0, 4.0]})
    assert clip.timestamps == (0.5, 1.0, 4.0)
    assert decode_video({"frames": frames, "fps": 2}).timestamps == (0.0, 0.5, 1.0)


def test_a_bare_array_keeps_every_frame_and_says_that_it_has_no_times() -> None:
    array = np.zeros((5, 8, 9, 3), np.uint8)
    clip = decode_video(array)
    assert clip.frames is array
    assert clip.timestamps is None


@pytest.mark.parametrize(
    ("frames", "options", "said"),
    [
        ([], {}, "no frames"),
        (np.zeros((0, 4, 4, 3), np.uint8), {}, "no frames"),
        (np.zeros((3, 4, 4), np.uint8), {}, "(T, H, W, 3)"),
        (np.zeros((3, 4, 4, 3), np.float32), {}, "float32"),
        ([gradient(8, 8), gradient(9, 8)], {}, "one size"),
        ([gradient()] * 3, {"limits": MediaLimits(max_frames=2)}, "limit of 2"),
        ([gradient()] * 3, {"limits": MediaLimits(video_pixels=4000)}, "limit of 4000"),
        ([gradient()] * 2, {"timestamps": [0.0]}, "1 times for 2 frames"),
        ([gradient()] * 2, {"timestamps": [1.0, 1.0]}, "ascending"),
        ([gradient()] * 2, {"timestamps": [0.0, float("nan")]}, "ascending"),
        ([gradient()] * 2, {"timestamps": [-1.0, 1.0]}, "ascending"),
        ([gradient()] * 2, {"timestamps": ["a", "b"]}, "numbers of seconds"),
        ([gradient()] * 2, {"source_fps": 0}, "positive"),
        ([gradient()] * 2, {"source_fps": "24"}, "positive"),
        ([gradient(), b"junk"], {}, "frames.1"),
    ],
)
def test_frames_that_are_refused(frames: Any, options: dict[str, Any], said: str) -> None:
    assert said in str(refused(frames, **options))


# Refusals


def test_empty_and_too_large() -> None:
    assert "empty" in str(refused(b""))
    assert refused(video(2), limits=MediaLimits(video_bytes=10)).limit == 10


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello", "text"),
        (b"#EXTM3U\nhttp://127.0.0.1/", "playlist"),
        (b"<svg/>", "SVG"),
        (encoded(gradient(), "JPEG"), "under images"),
        (encoded(gradient(), "PNG"), "still image"),
        (b"\x1aE\xdf\xa3" + bytes(100), "cannot be decoded as WEBM"),
        (b"\0\0\0\x18ftypisom" + bytes(100), "cannot be decoded as MP4"),
    ],
)
def test_what_is_not_a_video_is_named(data: bytes, said: str) -> None:
    assert said in str(refused(data))


@pytest.mark.parametrize("container", ["mp4", "matroska", "webm", "avi"])
def test_truncated_videos(container: str) -> None:
    codec = {"webm": "libvpx", "avi": "mpeg4"}.get(container, "libx264")
    data = noise_video(container, codec)
    refused(data[: len(data) // 3])


def noise_video(container: str, codec: str) -> bytes:
    """Noise, so that cutting the file's end cuts frames."""
    import av

    draw = np.random.default_rng(0)
    buffer = io.BytesIO()
    with silent(), av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(30):
            noise = draw.integers(0, 256, (48, 64, 3), np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


def sound() -> bytes:
    """A container with sound only."""
    import av

    buffer = io.BytesIO()
    with silent(), av.open(buffer, "w", format="matroska") as output:
        track = output.add_stream("aac", rate=8000, layout="mono")
        wave = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        wave.sample_rate, wave.pts = 8000, 0
        output.mux(track.encode(wave))
        output.mux(track.encode())
    return buffer.getvalue()


def tracks(count: int) -> bytes:
    """A Matroska file, written element by element, that declares `count` video tracks and has one broken frame."""

    def element(identity: str, body: bytes) -> bytes:
        return bytes.fromhex(identity) + (len(body) | 1 << 56).to_bytes(8, "big") + body

    def track(number: int) -> bytes:
        size = element("b0", b"\x10") + element("ba", b"\x10")
        place = number.to_bytes(2, "big")
        kind = element("83", b"\x01") + element("86", b"V_VP8") + element("e0", size)
        return element("ae", element("d7", place) + element("73c5", place) + kind)

    header = element("1a45dfa3", element("4282", b"matroska"))
    cluster = element("1f43b675", element("e7", b"\0") + element("a3", b"\x81\0\0\x80junk"))
    return header + element("18538067", element("1654ae6b", b"".join(map(track, range(1, count + 1)))) + cluster)


def test_sound_without_pictures() -> None:
    assert "no video stream" in str(refused(sound()))


@pytest.mark.parametrize(("count", "said"), [(2, ""), (20, "20 streams are more than the limit of 16"), (1000, "")])
def test_a_thousand_streams(count: int, said: str) -> None:
    assert said in str(refused(tracks(count)))


def test_codecs_that_are_not_on_the_list() -> None:
    error = refused(video(3, container="matroska", codec="ffv1"))
    assert "ffv1" in str(error)
    assert "h264" in str(error)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (MediaLimits(video_seconds=2.0), "3.0 seconds are more than the limit of 2"),
        (MediaLimits(source_frames=20), "limit of 20"),
        (MediaLimits(image_pixels=1000), "limit of 1000"),
        (MediaLimits(decode_seconds=0.0), "longer than the limit of 0 seconds"),
    ],
)
def test_limits(limits: MediaLimits, said: str) -> None:
    assert said in str(refused(video(30, rate=10), limits=limits))


def test_limits_of_animations() -> None:
    assert "limit of 3" in str(refused(animation(), limits=MediaLimits(animation_frames=3)))
    assert "limit of 100" in str(refused(animation(), limits=MediaLimits(image_pixels=100)))


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": float("nan")}, {"max_frames": 0}, {"max_pixels": 5}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    refused(video(2), **options)


def test_frame_times_of_an_encoded_video_cannot_be_given() -> None:
    assert "belong to frames" in str(refused(video(2), source_fps=5))


def test_without_pyav_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    data = video(2)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"dicast\[torch\]"):
        decode_video(data)
    assert len(decode_video(animation())) == 5  # animated images need no PyAV
    assert Image.open(io.BytesIO(animation())).n_frames == 5


def test_groups_of_frames_of_which_none_is_shown_are_jumped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import av

    buffer = io.BytesIO()
    with silent(), av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=10, options={"g": "20", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(600):
            shade = np.full((48, 64, 3), index * 8 % 256, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")))
        output.mux(stream.encode())
    decoded: list[float] = []
    real = Plan.check_time
    monkeypatch.setattr(containers, "_read_index", counted(containers._read_index, decoded))
    monkeypatch.setattr(Plan, "check_time", lambda plan: decoded.append(0.0) or real(plan))
    clip = decode_video(buffer.getvalue(), fps=0.1)
    assert len(clip) == 6
    assert clip.timestamps == pytest.approx((0.0, 12.0, 24.0, 35.9, 47.9, 59.9), abs=0.05)
    expected = [round(moment * 10) * 8 % 256 for moment in clip.timestamps or ()]
    assert shades(clip) == pytest.approx(expected, abs=8)
    assert len(decoded) < 200  # of 600 frames


def counted(first_pass: Any, decoded: list[float]) -> Any:
    """The first pass over the packets, which is not to be counted."""

    def run(*arguments: Any) -> Any:
        index = first_pass(*arguments)
        decoded.clear()
        return index

    return run
