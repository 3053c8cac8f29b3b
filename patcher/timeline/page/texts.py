"""What the page says itself, in its languages. Names come from the run, and stand as they are."""

from __future__ import annotations

from collections.abc import Callable

from patcher.timeline.model import ROLES, Cause

LANGUAGES = ("en", "zh")

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("rlpatch timeline", "rlpatch 时间线"),
    "origin": (
        "{packages}: {processes} processes, {seconds} recorded",
        "{packages}：{processes} 个进程，记录了 {seconds}",
    ),
    "no_steps": ("No step of training is recorded yet.", "尚未记录到任何训练步。"),
    "sentence": (
        "{count} steps, typically {typical} each. Costliest: {title} ({seconds}, {share} of the run).",
        "共 {count} 步，通常每步 {typical}。代价最大的是 {title}（{seconds}，占整个运行的 {share}）。",
    ),
    "calm": (
        "{count} steps, typically {typical} each. Nothing stands out.",
        "共 {count} 步，通常每步 {typical}，没有突出的瓶颈。",
    ),
    "newest": (
        "this page shows the newest {count} of {all} steps; `rlpatch timeline --steps A:B` shows others",
        "共 {all} 步，本页只有最新的 {count} 步；`rlpatch timeline --steps A:B` 可看其余各步",
    ),
    "missing": ("Not everything was recorded:", "记录不完整："),
    "causes": ("What cost most, and what to do next", "主要耗时原因与下一步"),
    "of_run": ("{seconds}, {share} of the run", "{seconds}，占整个运行的 {share}"),
    "in_steps": ("in steps {steps}", "见于第 {steps} 步"),
    "more": (" and {count} more", "等另外 {count} 步"),
    "cut": (
        "Drawn from {start} to {end} of {seconds}: what lies before and after the steps is left out.",
        "只绘制 {seconds} 中的 {start} 至 {end}：各步之前与之后的部分省略。",
    ),
    "picture": ("The run", "整个运行"),
    "steps": ("Steps", "各步"),
    "step": ("step", "步"),
    "step_n": ("step {step}", "第 {step} 步"),
    "seconds": ("seconds", "秒"),
    "limited": ("what limited it", "受什么限制"),
    "tail": ("tail", "长尾"),
    "sync": ("weight sync", "权重同步"),
    "poll": ("polling", "轮询等待"),
    "busy": ("{role} busy", "{role}忙碌"),
    "excess": ("+{seconds} {cause}", "+{seconds} {cause}"),
    "in_phase": ("{cause} in {phase}", "{cause}（{phase} 阶段）"),
    "typical": ("typical", "正常"),
    "typical_mostly": ("typical; most of it: {cause}, {seconds}", "正常；主要是 {cause}，{seconds}"),
    "not_known": ("not known", "未知"),
    "several": ("several causes", "多个原因"),
    "not_known_why": ("not known: {why}", "未知：{why}"),
    "warm_up": ("warm-up", "预热"),
    "what_if": ("What there is to gain at best", "最多能节省多少"),
    "what_if_about": (
        "Bounds, not promises: each changes one thing and leaves all else as it was.",
        "这是上界，不是承诺：每一行只改变一处，其余不变。",
    ),
    "if": ("if there were", "假如"),
    "saves_step": ("saves, median step", "每步节省（中位数）"),
    "saves_run": ("saves, all steps", "总共节省"),
    "why": ("why this is a bound, where it saves most", "为什么是上界（节省最多的一步）"),
    "no tail": ("no tail", "没有长尾"),
    "perfect balance": ("perfect balance", "完全均衡"),
    "free weight sync": ("free weight sync", "权重同步不花时间"),
    "overlap": ("overlap, as in an asynchronous trainer", "像异步训练那样重叠"),
    "roles": ("Busy, and idle for whom", "忙碌与空闲，在等谁"),
    "role": ("role", "角色"),
    "lanes": ("processes", "进程"),
    "busy_share": ("busy", "忙碌"),
    "idle_step": ("idle per step", "每步空闲"),
    "waits_for": ("waits for (per step)", "在等（每步）"),
    "parts": ("Weight sync by part", "权重同步的各部分"),
    "part": ("part", "部分"),
    "median": ("median step", "中位数"),
    "longest": ("longest", "最长"),
    "imbalance": ("Imbalance", "不均衡"),
    "imbalance_about": ("How much later the last one finished than the mean.", "最后完成者比平均晚多少。"),
    "of": ("over", "范围"),
    "often_last": ("most often last", "最常最后完成"),
    "stale": (
        "Trajectories began with weights that were {versions} steps older than those trained on them, on average.",
        "轨迹开始生成时所用的权重，平均比训练时的权重旧 {versions} 步。",
    ),
    "windows": ("Windows to record next", "接下来值得录制的窗口"),
    "trigger": ("while this run goes on:", "本次运行仍在进行时："),
    "typical decode": ("the typical decode step", "典型的解码步"),
    "slowest decode": ("the slowest 1 % of decode steps", "最慢 1 % 的解码步"),
    "slow micro-batch": ("the slow micro-batch", "慢的 micro-batch"),
    "window tail": ("the tail of the rollout", "rollout 的长尾"),
    "recorded": ("Recorded windows", "已录制的窗口"),
    "clocks": ("Clocks", "时钟"),
    "hosts": ("machine", "机器"),
    "ahead": ("wall clock ahead of the driver's", "系统时钟比 driver 快"),
    "error": ("may be wrong by", "误差不超过"),
    "source": ("known from", "依据"),
    "same clock": ("the same clock", "同一时钟"),
    "causality": ("calls and requests", "调用与请求的先后"),
    "wall clock": ("wall clocks", "系统时钟"),
    "contradicts": ("contradictory", "互相矛盾"),
    "notes": ("Notes", "说明"),
    "path": ("critical path: who was waited for", "关键路径：在等谁"),
    "awaited": ("the step waited for", "这一步在等"),
    "gap": ("critical path, covered by no record", "关键路径，无记录覆盖"),
    "tail_legend": ("tail: fewer than a tenth of the requests", "长尾：请求数低于峰值的十分之一"),
    "paler": ("paler: only some of them", "浅色：只有其中一部分"),
    "requests": ("requests alive", "进行中的请求"),
    "alive": ("requests alive, at most {count}", "进行中的请求，最多 {count}"),
    "most": ("at most {count}", "最多 {count}"),
    "marks": ("windows", "窗口"),
    "iterations": ("iterations", "迭代"),
    "decodes": ("iterations, mostly decode", "迭代（以解码为主）"),
    "runs": (
        "{all} iterations, {decodes} of them only decode, at most {requests} requests",
        "{all} 次迭代，其中 {decodes} 次只有解码，最多 {requests} 个请求",
    ),
    "grouped": ("{role}: {count} as one", "{role}：{count} 个合为一行"),
    "grouped_about": (
        "{count} lanes that do the same are one here: solid where all of them are busy with it, paler where some are.",
        "{count} 条行为相同的泳道合为一条：全部忙于同一件事时为实色，部分忙时为浅色。",
    ),
    "merged": (
        "{count} bars shorter than {seconds} were drawn as one with their neighbours.",
        "{count} 个短于 {seconds} 的条与相邻的条合并绘制。",
    ),
    "other spans": ("other spans", "其他区段"),
    "names_joined": (
        "{count} names of spans that do not last long are drawn as one: {name}.",
        "{count} 个耗时较短的区段名合并绘制为“{name}”。",
    ),
    "listed": (
        "this page lists {count} of {all}: {what}; `rlpatch timeline --json` has all",
        "本页只列出 {all} 项中的 {count} 项：{what}；`rlpatch timeline --json` 可看全部",
    ),
    "left_out": ("{count} short spans are left out.", "省略了 {count} 个短的区段。"),
    "hint": (
        "Drag, pinch, or click the picture and use the wheel; keys: + − ← → 0, n and p for the step after or before.",
        "可拖动、双指缩放，或点击图后用滚轮；按键：+ − ← → 0，n 与 p 切换下一步与上一步。",
    ),
    "whole": ("all steps", "所有步"),
    "closer": ("zoom in", "放大"),
    "farther": ("zoom out", "缩小"),
    "earlier": ("earlier", "向前"),
    "later": ("later", "向后"),
    "cause_on": ("{who}: {what}", "{who}：{what}"),
    "replica_n": ("{who}, replica {number}", "{who} 副本 {number}"),
    "rank_n": ("{who}, rank {number}", "{who} rank {number}"),
    "number_n": ("{who} (#{number})", "{who}（#{number}）"),
    "list": (", ", "、"),
    **{f"role {role}": (name, chinese) for (role, name), chinese in zip(
        ROLES.items(), ("driver", "训练", "引擎", "服务", "agent 循环", "奖励", "其他", "未记录"), strict=True)},
}  # fmt: skip
"""What it is → English, Chinese."""

Say = Callable[..., str]


def saying(language: str) -> Say:
    """The text of a key in a language, with its values filled in. Raises KeyError for a language that is not there."""
    at = {name: number for number, name in enumerate(LANGUAGES)}[language]

    def say(key: str, **values: object) -> str:
        return TEXTS[key][at].format(**values) if values else TEXTS[key][at]

    return say


def who(say: Say, role: str, replica: int | None = None, rank: int | None = None) -> str:
    """Who it is: ``trainer, rank 1``."""
    name = say(f"role {role}") if f"role {role}" in TEXTS else role
    name = name if replica is None else say("replica_n", who=name, number=replica)
    return name if rank is None else say("rank_n", who=name, number=rank)


def cause(say: Say, found: Cause) -> str:
    """Who and what, and the phase if it has another name: ``trainer, rank 1: micro-batch in update_actor``."""
    text = say("cause_on", what=found.what, who=who(say, found.role, found.replica, found.rank))
    return say("in_phase", cause=text, phase=found.phase) if found.phase not in ("", found.what, "step") else text


def seconds(value: float) -> str:
    """A length as people read it, to three digits."""
    if value >= 3600:
        return f"{int(value // 3600)} h {int(value % 3600 // 60):02} min"
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 0.995:
        return f"{value:.2f} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-6 else "0 s"


def share(value: float) -> str:
    """A share of 0 to 1 in percent."""
    return f"{100 * value:.0f} %"
