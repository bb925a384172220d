"""What the audio service measures is so: tempo, key, loudness, sections and lines of songs that are known, because they
were made here."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from analysis import harmony, loudness, lyrics, measure, rhythm, songs, sound
from analysis.models import AnalysisResult, Section
from analysis.picture import picture
from analysis.songs import Song
from analysis.sound import RATE, BadAudio
from scipy.io import wavfile
from scipy.signal import resample_poly

from tests.examples.conftest import EXAMPLES

SHORT = (("intro", 4), ("verse", 4), ("chorus", 4))
LINES = (("One line of the verse", "Another line of the verse"), ("Now we sing the chorus", "Now we sing it again"))


def measured(song: Song, folder: Path) -> AnalysisResult:
    path = folder / "song.wav"
    sound.write(path, songs.sing(song))
    return measure.measure(path, lambda fraction, stage: None)[1]


@pytest.mark.parametrize("tempo", [72, 90, 105, 120, 137, 160])
def test_the_tempo_of_a_song_is_found_to_a_tenth_of_a_beat(tempo: int) -> None:
    heard = rhythm.rhythm(songs.sing(Song("", tempo, "C", "major", SHORT)))
    assert heard.tempo == pytest.approx(tempo, abs=0.1)
    apart = np.abs((heard.beats + 30 / tempo) % (60 / tempo) - 30 / tempo)
    assert apart.max() < 0.03, "every beat is where one was played"


@pytest.mark.parametrize("mode", ["major", "minor"])
def test_each_of_the_24_keys_is_found(mode: str) -> None:
    made = [f"{tonic} {mode}" for tonic in harmony.NAMES]
    found = [
        harmony.key(harmony.chroma(songs.sing(Song("", 150, tonic, mode, (("verse", 4),)))))[0]
        for tonic in harmony.NAMES
    ]
    assert found == made


def test_sections_begin_where_the_parts_do_and_parts_that_sound_alike_share_a_letter(tmp_path: Path) -> None:
    song = songs.SAMPLES[0]
    found = measured(song, tmp_path).sections
    assert [each.start for each in found] == pytest.approx(song.starts, abs=0.05)
    assert [each.label for each in found] == ["A", "B", "C", "B", "C"]
    assert found[0].end == found[1].start
    assert found[0].loudness_lufs is not None and found[2].loudness_lufs is not None
    assert found[0].loudness_lufs < found[2].loudness_lufs - 6, "the intro is quiet, the chorus is loud"


@pytest.mark.parametrize("rate", [22_050, 44_100, 48_000])
def test_loudness_is_that_of_the_broadcasters_standard(rate: int) -> None:
    """A sine of 997 Hz at full scale has -3.01 LUFS in one channel, and 0.0 in two (ITU-R BS.1770-4)."""
    time = np.arange(5 * rate) / rate
    sine = np.sin(2 * np.pi * 997 * time).astype(np.float32)[:, None]
    assert lufs(sine, rate) == pytest.approx(-3.01, abs=0.03)
    assert lufs(np.concatenate([sine, sine], axis=1), rate) == pytest.approx(0.0, abs=0.03)
    assert lufs(0.1 * sine, rate) == pytest.approx(-23.01, abs=0.03)
    with_rest = np.concatenate([sine, np.zeros((5 * rate, 1), np.float32)])
    assert lufs(with_rest, rate) == pytest.approx(-3.01, abs=0.35), "silence is left out"


def lufs(samples: sound.Samples, rate: int, blocks: int = 7) -> float | None:
    return loudness.gated(metered(samples, rate, blocks).powers)


def metered(samples: sound.Samples, rate: int, blocks: int) -> loudness.Meter:
    meter = loudness.Meter(rate)
    for block in np.array_split(samples, blocks):
        meter(block)
    return meter


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_056, 48_000, 96_000])
def test_a_song_in_blocks_is_heard_as_if_it_came_in_one(rate: int) -> None:
    noise = np.random.default_rng(3).standard_normal((3 * rate + 17, 2)).astype(np.float32)
    whole, blocks = (metered(noise, rate, count) for count in (1, 31))
    assert blocks.powers == pytest.approx(whole.powers, rel=1e-9)
    assert len(whole.powers) == (len(noise) - round(0.4 * rate)) // round(0.1 * rate) + 1
    assert blocks.peak == whole.peak

    mono = noise[:, 0]
    common = math.gcd(rate, RATE)
    resampler = sound.Resampler(rate)
    parts = [resampler.add(part) for part in np.array_split(mono, 23)] + [resampler.rest()]
    wanted = resample_poly(mono, RATE // common, rate // common) if rate != RATE else mono
    assert len(np.concatenate(parts)) == len(wanted)
    assert np.abs(np.concatenate(parts) - wanted).max() < 1e-5


FORMATS = [("WAV", "PCM_24"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)]


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_a_song_is_measured_in_every_format(tmp_path: Path, format: str, subtype: str | None) -> None:
    mono = songs.sing(Song("", 120, "G", "major", SHORT, LINES))
    wide = resample_poly(mono, 320, 147).astype(np.float32)
    soundfile.write(tmp_path / "song", np.stack([wide, 0.5 * wide], axis=1), 48_000, format=format, subtype=subtype)
    _, found = measure.measure(tmp_path / "song", lambda fraction, stage: None)
    assert (found.sample_rate, found.channels, found.key) == (48_000, 2, "G major")
    assert found.tempo_bpm == pytest.approx(120, abs=0.1)
    assert found.duration_seconds == pytest.approx(len(mono) / RATE, abs=0.1)


def test_a_format_that_is_not_taken_is_refused_by_its_name(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.aiff", np.zeros(3 * RATE, np.float32), RATE)
    with pytest.raises(BadAudio, match="this is AIFF: WAV, FLAC, OGG, MP3 are taken"):
        sound.read(tmp_path / "song.aiff")


@pytest.mark.slow
@pytest.mark.timeout(
    500
)  # it is about memory; twenty minutes of sound are much to compute on a machine with other work
def test_a_song_of_twenty_minutes_is_analysed_within_600_megabytes(tmp_path: Path) -> None:
    """As a job does it: with its picture, in a process of its own, from stereo at 44.1 kHz."""
    mono = songs.sing(Song("", 120, "G", "major", SHORT))
    stereo = np.repeat(np.clip(np.tile(mono, 52), -1, 1), 2)[: 1199 * 44_100]
    soundfile.write(tmp_path / "song", np.stack([stereo, stereo], axis=1), 44_100, format="FLAC")
    program = (
        "import sys; from pathlib import Path; from analysis.measure import measure;"
        " from analysis.picture import picture;"
        " heard, found = measure(Path(sys.argv[1]), lambda fraction, stage: None); picture(heard, found);"
        " most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        " print(found.duration_seconds, int(most.split()[1]) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "song"], cwd=EXAMPLES, capture_output=True, text=True, check=True
    )
    seconds, megabytes = done.stdout.split()
    assert (float(seconds), int(megabytes) <= 600) == (1199, True), f"it took {megabytes} MB"


@pytest.mark.parametrize("song", songs.SAMPLES[:2], ids=lambda song: song.title)
def test_every_line_of_the_lyrics_is_timed_to_where_it_is_sung(song: Song, tmp_path: Path) -> None:
    lines = lyrics.align(song.lyrics, measured(song, tmp_path))
    assert [line.text for line in lines] == [text for stanza in song.stanzas for text in stanza]
    assert [line.at for line in lines] == pytest.approx(song.line_times(), abs=0.05)


def test_lyrics_with_more_stanzas_than_sections_keep_their_order() -> None:
    song = AnalysisResult(
        duration_seconds=30,
        sample_rate=RATE,
        channels=1,
        tempo_bpm=0,
        tempo_confidence=0,
        key="unknown",
        key_confidence=0,
        loudness_lufs=None,
        peak_dbfs=None,
        loudness_curve=[],
        beats=[],
        onsets=[3.0, 11.0, 21.0],
        onset_strengths=[1.0, 0.2, 0.5],
        sections=[Section(label="A", start=0, end=30, loudness_lufs=None)],
    )
    lines = lyrics.align("one\n\n\n  two \nthree\n\nfour\n五六", song)
    assert [line.text for line in lines] == ["one", "two", "three", "four", "五六"]
    times = [line.at for line in lines]
    assert times == sorted(set(times)) and times[0] >= 0 and times[-1] < 30
    assert lyrics.align(" \n\n", song) == []


def test_an_lrc_file_is_what_players_read() -> None:
    line = lyrics.TimedLine(at=83.456, text="Hello")
    text = lyrics.lrc([line], title="A\nsong", artist="", seconds=125)
    assert text == "[ti:A song]\n[length:2:05]\n[01:23.46]Hello\n"


def test_stereo_at_another_rate_is_measured_the_same(tmp_path: Path) -> None:
    mono = songs.sing(Song("", 120, "G", "major", SHORT, LINES))
    wide = resample_poly(mono, 320, 147).astype(np.float32)
    wavfile.write(tmp_path / "wide.wav", 48_000, np.stack([wide, 0.5 * wide], axis=1))
    _, found = measure.measure(tmp_path / "wide.wav", lambda fraction, stage: None)
    assert (found.sample_rate, found.channels, found.key) == (48_000, 2, "G major")
    assert found.tempo_bpm == pytest.approx(120, abs=0.1)


def test_silence_has_no_tempo_no_key_and_no_loudness(tmp_path: Path) -> None:
    sound.write(tmp_path / "silence.wav", np.zeros(5 * RATE, np.float32))
    heard, found = measure.measure(tmp_path / "silence.wav", lambda fraction, stage: None)
    assert (found.tempo_bpm, found.key, found.loudness_lufs, found.peak_dbfs) == (0, "unknown", None, None)
    assert [each.label for each in found.sections] == ["A"]
    assert "silence" in picture(heard, found)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no sound file"),
        (b"ID3\x04 this is something else", "no sound file"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00", "no sound file"),
    ],
)
def test_what_is_no_wav_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "song.wav").write_bytes(content)
    with pytest.raises(BadAudio, match=says):
        sound.read(tmp_path / "song.wav")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"channels": 0}, "no sound file"),
        ({"data": b"dat_"}, "no sound file"),
        ({"rate": 0}, "no sound file"),
        ({"rate": 1}, "1 samples a second"),
        ({"rate": 3_000}, "between 4000 and 384000"),
        ({"rate": 5_000_001}, "between 4000 and 384000"),
    ],
)
def test_headers_that_no_recorder_writes_are_refused_with_the_reason(
    tmp_path: Path, header: dict[str, Any], says: str
) -> None:
    given = {"channels": 1, "rate": 8_000, "align": 2, "bits": 16, "data": b"data"} | header
    second = given["rate"] * given["align"]
    form = struct.pack("<HHIIHH", 1, given["channels"], given["rate"], second, given["align"], given["bits"])
    sound_bytes = bytes(3 * 16_000)
    chunks = b"fmt " + struct.pack("<I", 16) + form + given["data"] + struct.pack("<I", len(sound_bytes)) + sound_bytes
    (tmp_path / "song.wav").write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    with pytest.raises(BadAudio, match=says):
        sound.read(tmp_path / "song.wav")


def test_a_file_that_claims_more_than_any_memory_is_refused(tmp_path: Path) -> None:
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, 2**62, 2**62, 2**60, 0)
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8_000, 16_000, 2, 16)
    (tmp_path / "song.wav").write_bytes(
        b"RF64\xff\xff\xff\xffWAVE" + sizes + form + b"data\xff\xff\xff\xff" + bytes(99)
    )
    with pytest.raises(BadAudio, match=r"0\.0 s of sound"):
        sound.read(tmp_path / "song.wav")


def test_too_little_sound_is_refused_with_the_reason(tmp_path: Path) -> None:
    sound.write(tmp_path / "blip.wav", np.zeros(RATE, np.float32))
    with pytest.raises(BadAudio, match=r"1\.0 s of sound"):
        sound.read(tmp_path / "blip.wav")


def test_the_picture_shows_texts_as_texts(tmp_path: Path) -> None:
    sound.write(tmp_path / "song.wav", songs.sing(Song("", 150, "C", "major", SHORT)))
    heard, found = measure.measure(tmp_path / "song.wav", lambda fraction, stage: None)
    drawn = picture(heard, found, "<script>", [lyrics.TimedLine(at=1, text="a & b")])
    assert "&lt;script&gt;" in drawn and "a &amp; b" in drawn
    assert drawn.count("<circle") == 1 and drawn.endswith("</svg>\n")
