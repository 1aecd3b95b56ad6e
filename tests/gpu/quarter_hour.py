#!/usr/bin/env python3
"""The figures of quarter_hour.sh.

  quarter_hour.py table RESULTS.jsonl [PAGE]     prints a table; with PAGE, writes it between the page's two marks, `MARKS` below
  quarter_hour.py record OUT PHASE STATUS SECONDS FROM    a phase's line of results.jsonl, from OUT's PHASE.figures, PHASE.log and the
                                                 lines of clocks.csv after the first FROM
  quarter_hour.py trace TRACE [attention]        the kernels of a step's trace, as figures; `attention`: its kernels' names and time
  quarter_hour.py losses CPU.csv GPU.csv LIMIT   their greatest relative difference; fails above LIMIT
"""
import json
import pathlib
import sys

MARKS = ("<!-- quarter_hour.py writes from here -->", "<!-- to here -->")
STATUS = {0: "passed", 77: "skipped", 78: "no time left", 124: "timeout", 137: "timeout"}


def value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def numbers(rows, column):
    out = []
    for row in rows:
        try:
            out.append(float(row.split(",")[column]))
        except (IndexError, ValueError):
            continue  # a line that is not whole yet, or "[N/A]"
    return out


def lines(path):
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def record(out, phase, status, seconds, start):
    out = pathlib.Path(out)
    figures = []
    for line in lines(out / f"{phase}.figures"):
        case, *pairs = line.split("\t")
        figures.append({"case": case, **{key: value(text) for key, _, text in (pair.partition("=") for pair in pairs) if key}})
    row = {"phase": phase, "status": STATUS.get(int(status), "failed"), "exit": int(status), "seconds": int(seconds), "figures": figures}
    clocks = lines(out / "clocks.csv")[int(start):]
    mhz, watts = numbers(clocks, 1), numbers(clocks, 2)
    if mhz and watts:
        row |= {"mhz": [min(mhz), max(mhz)], "watts": [min(watts), max(watts)]}
    if row["status"] not in ("passed", "no time left"):
        row["log"] = lines(out / f"{phase}.log")[-5:]
    print(json.dumps(row))


def union(spans):
    """The length of spans that may overlap, and the spans that they make up."""
    whole = []
    for begin, end in sorted(spans):
        if whole and begin <= whole[-1][1]:
            whole[-1][1] = max(whole[-1][1], end)
        else:
            whole.append([begin, end])
    return sum(end - begin for begin, end in whole), whole


def trace(path, *what):
    """Of rank 0: the GPU's kernels, its time without any, and the part of NCCL's time that has another kernel beside it."""
    events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    kernels = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["cat"] == "kernel"]
    if not kernels:
        sys.exit(f"quarter_hour.py: no kernels in {path}")
    busy, _ = union([k[:2] for k in kernels])
    out = {"launches": len(kernels), "busy_ms": busy, "idle_ms": max(k[1] for k in kernels) - min(k[0] for k in kernels) - busy,
           "host_waits": sum(e["name"] == "aten::_local_scalar_dense" for e in events)}
    nccl, apart = union([k[:2] for k in kernels if "nccl" in k[2].lower()])
    _, others = union([k[:2] for k in kernels if "nccl" not in k[2].lower()])
    if nccl:
        hidden = sum(max(0, min(b[1], o[1]) - max(b[0], o[0])) for b in apart for o in others)
        out |= {"nccl_ms": nccl, "nccl_hidden": hidden / nccl}
    if "attention" in what:
        these = [k for k in kernels if any(word in k[2].lower() for word in ("flash", "fmha", "attention", "sdpa", "softmax"))]
        out = {"attention_ms": sum(end - begin for begin, end, _ in these), "kernels": " ".join(sorted({k[2].split("(")[0][-60:] for k in these}))}
    print("\t".join(f"{key}={n / 1e3:.3f}" if key.endswith("_ms") else f"{key}={n:.3f}" if isinstance(n, float) else f"{key}={n}"
                    for key, n in out.items()))


def losses(cpu, gpu, limit):
    columns = [numbers(lines(pathlib.Path(path))[1:], 2) for path in (cpu, gpu)]
    if not columns[0] or len(columns[0]) != len(columns[1]):
        sys.exit(f"quarter_hour.py: {len(columns[0])} losses in {cpu}, {len(columns[1])} in {gpu}")
    most = max(abs(a - b) / abs(a) for a, b in zip(*columns))
    print(f"steps={len(columns[0])}\tdifference={most:.2e}")
    if not most <= float(limit):
        sys.exit(f"quarter_hour.py: {gpu} differs by {most:.2e}, more than {limit}")


def table(results, page=None):
    rows = ["| phase | case | figures | MHz | W | s | |", "|---|---|---|---|---|---|---|"]
    for row in map(json.loads, pathlib.Path(results).read_text().splitlines()):
        clocks = [f"{low:.0f} to {high:.0f}" for low, high in (row[key] for key in ("mhz", "watts") if key in row)] or ["", ""]
        rows.append(f"| `{row['phase']}` | | | {clocks[0]} | {clocks[1]} | {row['seconds']} | {row['status']} |")
        for figure in row["figures"]:
            text = ", ".join(f"{key} {str(n).replace('|', ' ')}" for key, n in figure.items() if key not in ("case", "status"))
            rows.append(f"| | {figure['case']} | {text} | | | | {figure.get('status', '')} |")
    text = "\n".join(rows) + "\n"
    print(text, end="")
    if page:
        path = pathlib.Path(page)
        before, mark, rest = path.read_text().partition(MARKS[0])
        _, end, after = rest.partition(MARKS[1])
        if not mark or not end:
            sys.exit(f"quarter_hour.py: {page} has not both of {MARKS[0]} and {MARKS[1]}")
        path.write_text(f"{before}{mark}\n\n{text}\n{end}{after}")


def main():
    commands = {f.__name__: f for f in (table, record, trace, losses)}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
