#!/usr/bin/env python3
"""Every file of tests/data/formats/hostile through the program: what cases.tsv rejects ends with an
exit status that is no signal, one line that names the file and the culprit, within 2 seconds of
processor time and 64 MB; what it accepts is not blamed.

    tests/e2e/hostile.py PATH-TO-h3av SOURCE-DIR
"""
import os
import subprocess
import sys
import tempfile

SECONDS, MEGABYTES = 2.0, 64
if os.environ.get("H3_SANITIZED"):  # its own memory and time would be measured
    SECONDS, MEGABYTES = 20.0, 1024


def command(kind, path, work, data):
    """Arguments that make the program read the file, and whether it ends well where all is well."""
    out = os.path.join(work, "out.safetensors")
    generate = ["generate", "-p", "x", "-s", "64x32", "-f", "22", "--steps", "2", "-j", "1", "-q", "-o",
                os.path.join(work, "refused.mp4")]
    if kind in ("safetensors", "gguf", "index"):
        return ["dump", path, "--all", "-o", out], True
    if kind == "tokenizer":
        return ["tokenize", "--tokenizer", path, "hello"], True
    if kind == "dit":  # a transformer of other sizes than the model around it: it never runs to the end
        return generate + ["--dit", path], False
    if kind == "lora":
        return generate + ["--dit", os.path.join(data, "hostile", "dt-valid.safetensors"), "--strict",
                           "--lora", path], False
    folder = os.path.join(work, "transformer")  # config: beside the sample it belongs to
    sample = os.path.join(data, "samples", "dit-original", "transformer")
    os.makedirs(folder, exist_ok=True)
    for f in os.listdir(sample):
        link = os.path.join(folder, f)
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(path if f == "config.json" else os.path.join(sample, f), link)
    return generate + ["--dit", folder], False


def run(h3av, args, work):
    """Exit status, error text, seconds of processor time, peak megabytes."""
    with open(os.path.join(work, "err"), "w+b") as err:
        p = subprocess.Popen([h3av] + args, stdout=subprocess.DEVNULL, stderr=err)
        _, status, use = os.wait4(p.pid, 0)
        p.returncode = status
        err.seek(0)
        text = err.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(status), text, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def problems(case, status, text, seconds, megabytes, ends_well):
    name, kind, expect, culprit = case
    lines = [line for line in text.splitlines() if line.strip()]
    if status < 0:
        yield f"ended by signal {-status}"
    if seconds > SECONDS or megabytes > MEGABYTES:
        yield f"took {seconds:.1f} s and {megabytes:.0f} MB"
    shown = "config.json" if kind == "config" else name
    is_blamed = status != 0 and any(shown in line for line in lines)
    if expect == "accept":
        if ends_well and status != 0:
            yield f"is refused: {text.strip()}"
        if kind == "config" and "config.json" in text:
            yield f"is blamed: {text.strip()}"
    if expect == "reject":
        if status == 0:
            yield "is taken"
        if len(lines) != 1 or not lines[0].startswith("h3av: ") or not lines[0].isprintable():
            yield f"is not refused with one line: {text!r}"
        if not is_blamed:
            yield f"is not named: {text.strip()}"
        if culprit != "-" and kind != "config" and culprit not in text:
            yield f"{culprit} is not named: {text.strip()}"


def main(h3av, source):
    data = os.path.join(source, "tests", "data", "formats")
    with open(os.path.join(data, "hostile", "cases.tsv")) as f:
        cases = [line.rstrip("\n").split("\t")[:4] for line in f if "\t" in line]
    failed, slowest, largest, n = 0, 0.0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="h3av-hostile.") as work:
        # some files nest so deep that only their recipe is stored
        hostile = os.path.join(work, "hostile")
        subprocess.check_call([os.path.join(os.path.dirname(h3av), "test_model"),
                               os.path.join(data, "hostile"), hostile])
        for case in cases:
            if case[1] == "kind":
                continue
            args, ends_well = command(case[1], os.path.join(hostile, case[0]), work, data)
            status, text, seconds, megabytes = run(h3av, args, work)
            n, slowest, largest = n + 1, max(slowest, seconds), max(largest, megabytes)
            for p in problems(case, status, text, seconds, megabytes, ends_well):
                failed += 1
                print(f"FAIL {case[0]} ({case[1]}, {case[2]}): {p}")
            if os.path.exists(os.path.join(work, "refused.mp4")):
                failed += 1
                print(f"FAIL {case[0]}: left a video behind")
    print(f"{n} files, {failed} failures; at most {slowest:.2f} s and {largest:.0f} MB")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])))
