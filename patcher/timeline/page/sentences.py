"""The sentences of a joined run in Chinese: verdicts, causes and what to do next, bounds, windows, notes."""

from __future__ import annotations

from dataclasses import replace

from patcher.messages.sentences import translated
from patcher.timeline.model import RunTimeline, TrainingStep

CHINESE = {
    # verdicts
    "there are too few steps to compare it with": "步数太少，无法比较",
    "nothing stands out over the other steps": "与其他步相比没有突出之处",
    "it took no longer than the other steps": "耗时没有超过其他步",
    "no single cause: {what} accounts for {own:.2f} s of {more:.2f} s more":
        "没有单一原因：多出的 {more:.2f} s 中，{what} 占 {own:.2f} s",
    "{what} took longer, and what did it left no record": "{what} 耗时更长，但执行它的进程没有留下记录",
    "the step is {longer:.2f} s longer: the rest would have passed anyway, with polling for example":
        "这一步长了 {longer:.2f} s：其余时间本来也要花，例如在轮询中",
    "{silent} of {all} ranks recorded nothing of {call}": "{all} 个 rank 中有 {silent} 个没有记录 {call}",
    # causes
    "{cause}, over the typical step": "{cause}：超出典型步的部分",
    "polling ({names}) after the last trajectory had ended": "最后一条轨迹结束后的轮询（{names}）",
    "the tail of the rollout, with fewer than a tenth of its requests": "rollout 的长尾（请求数低于峰值的十分之一）",
    "weight sync": "权重同步",
    "the driver between its phases": "driver 在各阶段之间的时间",
    "waiting for the last replica and the last rank": "等待最后一个副本和最后一个 rank",
    # what to do next
    "poll more often: shorten the interval of the replay buffer (poll_interval), or let it be notified":
        "提高轮询频率：缩短 replay buffer 的轮询间隔（poll_interval），或改为通知机制",
    "cut or refill the tail: partial rollouts, more prompts than needed, a lower limit of tokens":
        "截断或填补长尾：partial rollout、多发一些 prompt、降低 token 上限",
    "look at its parts; send larger buckets, or overlap it with the end of the update":
        "查看它的各部分；增大 bucket，或让它与更新的末尾重叠",
    "profile the driver here (py-spy dump --pid): it computes between its phases":
        "对此处的 driver 做性能分析（py-spy dump --pid）：它在各阶段之间做计算",
    "compute rewards while the rollout goes on, in workers of their own":
        "在 rollout 进行的同时，用单独的 worker 计算奖励",
    "profile the driver in this phase (py-spy record --pid)": "对这一阶段的 driver 做性能分析（py-spy record --pid）",
    "check whether the worker was still busy with an earlier call": "检查 worker 当时是否还在忙于前一个调用",
    "record the micro-batch that the proposed window names": "按建议的窗口采集这个 micro-batch",
    "look at this rank's host and data: sequence lengths (balance_batch), clocks, other processes":
        "检查这个 rank 的主机和数据：序列长度（balance_batch）、频率、其他进程",
    "record the decode steps that the proposed window names": "按建议的窗口采集这些解码步",
    "look at this replica's host and at how requests are spread over the replicas":
        "检查这个副本的主机，以及请求在各副本间的分布",
    # bounds
    "the step would not wait for the last requests; the rest of their work would be done later, or not at all":
        "这一步不再等待最后的请求；未完成的部分以后再做，或不再做",
    "the last replica and the last rank would finish when the mean one does; work moves, none disappears":
        "最后一个副本和最后一个 rank 在平均时刻完成；工作只是转移，并未减少",
    "nothing waits for the weights; what already runs beside the sync cannot be saved twice":
        "不再有任何等待权重的时间；已与同步并行的部分不能重复节省",
    "rollout and training side by side, as in an asynchronous trainer: the longer of the two remains":
        "rollout 与训练并行，如同异步训练：只剩两者中较长的一个",
    # windows
    "{ms:,.1f} ms a decode step, the median of step {step}": "每个解码步 {ms:,.1f} ms，第 {step} 步的中位数",
    "decode step {number} took {ms:,.1f} ms, {times:.1f} times the median":
        "第 {number} 个解码步耗时 {ms:,.1f} ms，是中位数的 {times:.1f} 倍",
    "{seconds:,.2f} s of step {step} with fewer than a tenth of its {peak} requests":
        "第 {step} 步中有 {seconds:,.2f} s 请求数低于其峰值（{peak} 个）的十分之一",
    "micro-batch {number} of {method} in step {step} took {seconds:,.2f} s, {times:.1f} times the median":
        "第 {step} 步 {method} 的第 {number} 个 micro-batch 耗时 {seconds:,.2f} s，是中位数的 {times:.1f} 倍",
    "{why}; its engine ran empty within the step, so count again with watch":
        "{why}；这一步内引擎曾经空闲，请用 watch 重新计数",
    # what is missing, and notes
    "of {size} trainer ranks {ranks} left no file: whether one of them was late is unknown":
        "{size} 个训练 rank 中，{ranks} 没有留下文件：无法知道其中是否有迟到的",
    "no driver left a file: steps cannot be told apart": "没有 driver 的文件：无法区分各步",
    "no trainer left a file: what its calls waited for is unknown":
        "没有训练进程的文件：无法知道对它的调用在等什么",
    "no engine left a file: what a request waited for is unknown": "没有引擎的文件：无法知道请求在等什么",
    "step {step}: {missing}; their last second is lost if a process was killed":
        "第 {step} 步：{missing}；进程被杀时会丢失最后一秒",
    "{file} is damaged: the rest of it is left out": "{file} 已损坏：其后的内容未读取",
    "{file}: {count:,} records are not understood and left out": "{file}：有 {count:,} 条记录无法识别，未读取",
    "{who} lacks {count:,} records: dropped, or in a file that was replaced":
        "{who} 缺少 {count:,} 条记录：已被丢弃，或在被替换的文件中",
    "what {hosts} recorded contradicts the order of calls: times there may be {seconds:.3f} s wrong":
        "{hosts} 的记录与调用的先后矛盾：那里的时间可能有 {seconds:.3f} s 的误差",
    "the clock of {hosts} is its wall clock: its error has no bound":
        "{hosts} 的时钟取自系统时钟：误差没有上界",
    "the driver marks no steps: they are counted by its phase `step`": "driver 没有标记步：按它的 `step` 阶段计数",
}  # fmt: skip
"""English → Chinese, as templates."""

OF = {"replicas": "副本", "ranks": "rank"}


def in_chinese(found: RunTimeline) -> RunTimeline:
    """The same run with its sentences in Chinese."""
    return replace(
        found,
        steps=tuple(_step(one) for one in found.steps),
        causes=tuple(replace(one, title=_said(one.title), advice=_said(one.advice)) for one in found.causes),
        windows=tuple(replace(one, why=_said(one.why)) for one in found.windows),
        missing=tuple(map(_said, found.missing)),
        notes=tuple(map(_said, found.notes)),
    )


def _step(step: TrainingStep) -> TrainingStep:
    return replace(
        step,
        why=_said(step.why),
        missing=tuple(map(_said, step.missing)),
        what_if=tuple(replace(one, why=_said(one.why)) for one in step.what_if),
        imbalance=tuple(replace(one, of=OF.get(one.of, one.of)) for one in step.imbalance),
    )


def _said(text: str) -> str:
    return str(translated(text, CHINESE))
