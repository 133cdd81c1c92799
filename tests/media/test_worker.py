"""MediaWorker: the same pixels as in this process, and no file can stall, crash or bloat the process that asks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.media.samples import animation, data_url, encoded, gradient, video

from dicast.errors import EngineClosedError, MediaError, OverloadedError
from dicast.media import MediaLimits, MediaWorker, decode_image, decode_video
from dicast.media.limits import MIB


@pytest.fixture(scope="module")
def worker() -> Iterator[MediaWorker]:
    with MediaWorker() as worker:
        yield worker


def test_images_and_videos_are_those_of_this_process(worker: MediaWorker) -> None:
    picture, clip = encoded(gradient(640, 480), "JPEG"), video(12)
    assert np.array_equal(np.asarray(worker.image(picture)), np.asarray(decode_image(picture)))
    small = worker.image(data_url(picture), max_pixels=50_000)
    assert np.array_equal(np.asarray(small), np.asarray(decode_image(picture, max_pixels=50_000)))
    here, there = decode_video(clip, fps=5), worker.video(clip, fps=5)
    assert np.array_equal(here.frames, there.frames)
    assert there.frames.flags.writeable  # as tensors demand
    assert (here.timestamps, here.fps, here.duration) == (there.timestamps, there.fps, there.duration)


def test_frames_on_the_wire(worker: MediaWorker) -> None:
    clip = worker.video({"frames": [data_url(encoded(gradient()))] * 2, "fps": 4})
    assert clip.timestamps == (0.0, 0.25)


def test_frames_on_the_wire_are_bounded_together() -> None:
    frames = [data_url(encoded(gradient()))] * 3
    with MediaWorker(limits=MediaLimits(video_pixels=48 * 32 * 2)) as worker:
        with pytest.raises(MediaError, match=r"videos\.0\.frames\.2: brings the pixels to 4608"):
            worker.video({"frames": frames})
        with pytest.raises(MediaError, match=r"videos\.0\.frames: must be an array"):
            worker.video({"frames": "abc"})


def test_all_media_of_a_record(worker: MediaWorker) -> None:
    assert len(worker.images([encoded(gradient())] * 2)) == 2
    with pytest.raises(MediaError, match=r"images\.1"):
        worker.images([encoded(gradient()), b"junk"])
    with pytest.raises(MediaError, match="limit of 128"):
        worker.images([b""] * 129)
    assert len(worker.videos([animation()])[0]) == 5


def test_paths_are_never_read(worker: MediaWorker, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(encoded(gradient()))
    for source in (str(path), path, path.as_uri()):
        with pytest.raises(MediaError):
            worker.image(source)


def test_refusals_keep_name_limit_and_what_was_seen(worker: MediaWorker) -> None:
    data = encoded(gradient(), "TIFF")  # its size is known to the decoder only
    with MediaWorker(limits=MediaLimits(image_pixels=1000)) as small, pytest.raises(MediaError) as caught:
        small.image(data, name="assets.A")
    assert (caught.value.field, caught.value.limit, caught.value.seen) == ("assets.A", 1000, 48 * 32)
    broken = encoded(gradient())[:-60]
    with pytest.raises(MediaError, match="cannot be decoded as PNG"):
        worker.image(broken)


def process_of(worker: MediaWorker) -> int:
    worker.image(encoded(gradient()))
    process = worker._children[0]._process
    assert process is not None
    return process.pid


def test_a_crash_is_an_error_of_the_file_and_the_next_file_is_served(worker: MediaWorker) -> None:
    pid = process_of(worker)
    os.kill(pid, signal.SIGSTOP)  # holds the job until the crash
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(MediaError, match=r"crashed on this file \(signal 9\)"):
        worker.image(encoded(gradient()), name="images.0")
    assert process_of(worker) != pid


def test_a_child_that_died_idle_is_replaced(worker: MediaWorker) -> None:
    pid = process_of(worker)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_of(worker) != pid


def test_a_stall_ends_with_the_time_limit() -> None:
    with MediaWorker(limits=MediaLimits(decode_seconds=1.0)) as worker:
        os.kill(process_of(worker), signal.SIGSTOP)
        with pytest.raises(MediaError, match=r"longer than the limit of 1 seconds"):
            worker.image(encoded(gradient()))
        assert worker.image(encoded(gradient())).size == (48, 32)


def test_memory_is_bounded() -> None:
    wide = encoded(gradient(2500, 2500), "PNG", compress_level=1)
    with MediaWorker(limits=MediaLimits(worker_memory=8 * MIB)) as worker:
        with pytest.raises(MediaError, match="more memory than the limit of 8 MiB"):
            worker.image(wide)
        assert worker.image(encoded(gradient())).size == (48, 32)
    with MediaWorker(limits=MediaLimits(worker_memory=128 * MIB)) as worker:
        assert worker.image(wide).size == (2500, 2500)


def test_the_child_is_confined(worker: MediaWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICAST_TEST_SECRET", "key")
    with MediaWorker() as fresh:
        pid = process_of(fresh)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        bounds = Path(f"/proc/{pid}/limits").read_text()
    assert b"DICAST_TEST_SECRET" not in environment
    lines = {line[:20].strip(): line[20:].split() for line in bounds.splitlines()}
    assert lines["Max file size"][0] == "0"
    assert lines["Max core file size"][0] == "0"
    assert int(lines["Max open files"][0]) == 64
    assert int(lines["Max address space"][0]) < 4096 * MIB


def test_children_are_renewed_so_that_leaks_end(worker: MediaWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dicast.media.worker._JOBS_PER_CHILD", 2)
    with MediaWorker() as fresh:
        pids = {process_of(fresh) for _ in range(4)}
    assert len(pids) == 2


def test_when_all_are_busy_a_caller_is_told_to_come_again() -> None:
    with MediaWorker(max_waiting_seconds=0.05, limits=MediaLimits(decode_seconds=20)) as worker:
        pid = process_of(worker)
        os.kill(pid, signal.SIGSTOP)
        waiting = threading.Thread(target=worker.image, args=(encoded(gradient()),))
        waiting.start()
        while not worker._idle.empty():
            time.sleep(0.005)
        with pytest.raises(OverloadedError):
            worker.image(encoded(gradient()))
        os.kill(pid, signal.SIGCONT)
        waiting.join()


def test_many_threads_share_a_pool() -> None:
    sizes: list[tuple[int, int]] = []
    with MediaWorker(processes=2) as worker:
        threads = [
            threading.Thread(target=lambda w=width: sizes.append(worker.image(encoded(gradient(w, 8))).size))
            for width in range(8, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(sizes) == [(width, 8) for width in range(8, 20)]


def test_media_of_a_record_are_bounded_together() -> None:
    picture = encoded(gradient())
    with MediaWorker(limits=MediaLimits(record_pixels=48 * 32 * 2)) as worker:
        assert len(worker.images([picture] * 2)) == 2
        with pytest.raises(MediaError, match=r"images\.2: brings the pixels to 4608 in all"):
            worker.images([picture] * 3)


def test_a_decoder_that_does_not_start_is_not_the_file_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dicast.media.worker.sys.executable", "/bin/false")
    with MediaWorker() as worker, pytest.raises(OverloadedError, match="does not start"):
        worker.image(encoded(gradient()))


def test_closed() -> None:
    worker = MediaWorker()
    pid = process_of(worker)
    worker.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(EngineClosedError):
        worker.image(encoded(gradient()))
