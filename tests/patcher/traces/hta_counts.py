"""Print what HTA says of a trace, and of parts of it, as JSON: python hta_counts.py TRACE < SPANS

SPANS are pairs of microseconds on stdin. HTA looks at whole traces, so each span is the same trace with its kernels
clipped to it: what HTA counts is as it is. It rounds the times of traces that have more than microseconds.
"""

import contextlib
import json
import sys
import warnings

warnings.simplefilter("ignore")
with contextlib.redirect_stdout(sys.stderr):
    from hta.trace_analysis import TraceAnalysis


def counted(analysis):
    """Its three tables: the parts of the time, the share of the communication that is hidden, and the kernels."""
    (parts,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    (hidden,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    every = {"num_kernels": 10**6, "duration_ratio": 1.0, "include_memory_kernels": True}
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, **every)
    return {
        "parts": {name: float(value) for name, value in parts.items()},
        "hidden": float(hidden["comp_comm_overlap_pctg"]),
        "types": dict(zip(types["kernel_type"], map(int, types["sum"]), strict=True)),
        "kernels": dict(zip(kernels["name"], map(int, kernels["sum (us)"]), strict=True)),
    }


def clipped(rows, begin, end):
    """The kernels of ``rows`` between two times, cut where they reach beyond."""
    until = (rows["ts"] + rows["dur"]).clip(upper=end)
    found = rows.assign(ts=rows["ts"].clip(lower=begin))
    found["dur"] = until - found["ts"]
    return found[found["stream"].ne(-1) & found["dur"].gt(0)]


spans = json.load(sys.stdin)
with contextlib.redirect_stdout(sys.stderr):
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
    found = [counted(analysis)]
    whole = analysis.t.get_trace(0)
    for begin, end in spans:
        analysis.t.traces[0] = clipped(whole, begin - analysis.t.min_ts, end - analysis.t.min_ts)
        found.append(counted(analysis))
print(json.dumps(found))
