
// The picture of a run, closer. Its bars are read from the paths that stand in the page; names stay text.
const picture = document.querySelector(".picture");
if (picture) {
  const find = (selector) => picture.querySelector(selector);
  const run = JSON.parse(find("#run").textContent);
  const plot = find(".plot"), bars = find(".bars"), over = find(".over"), about = find(".about"), choice = find("select");
  const height = +bars.getAttribute("height");
  let from = 0, to = run.ticks, width = 1;

  const length = (seconds) => seconds >= 100 ? `${Math.round(seconds)} s` : seconds >= 0.9995 ? `${+seconds.toPrecision(3)} s`
    : seconds >= 1e-3 ? `${+(seconds * 1e3).toPrecision(3)} ms` : `${Math.round(seconds * 1e6)} µs`;
  const inSeconds = (ticks) => ticks / run.ticks * run.seconds;  // of a length
  const when = (ticks) => run.start + inSeconds(ticks);
  const x = (ticks) => (ticks - from) / (to - from) * width;

  // What stands in the page: strokes "M0 8h5m3 0h2" of bars, and lines "M0 8V9H3" of the curve and the links.
  const paler = new Set();
  const strokes = [...bars.querySelectorAll(".b")].map((path) => {
    const title = path.querySelector("title");
    const [first, ...rest] = path.getAttribute("d").slice(1).split(/[hm ]/).map(Number);
    const [y, ...numbers] = rest;
    const starts = [], ends = [];
    let at = first;
    for (let i = 0; i < numbers.length; i += 3) {  // length, gap to the next, 0
      starts.push(at); ends.push(at += numbers[i]);
      at += numbers[i + 1] ?? 0;
    }
    const name = title.textContent;
    title.remove();
    const notes = path.dataset.notes?.split(",");
    const high = +path.getAttribute("stroke-width");
    const kind = path.classList;
    const twice = !kind.contains("pale") && paler.has(`${y} ${name}`);  // the paler bar below it has its name
    if (kind.contains("pale")) paler.add(`${y} ${name}`);
    const named = high > 10 && !twice && !/ k-(iterations|decodes)/.test(path.getAttribute("class")) || kind.contains("tail");
    return { path, y, high, starts, ends, name, notes, named };
  });
  const lines = [...bars.querySelectorAll(".curve, .links")].map((path) => {
    path.querySelector("title")?.remove();
    return { path, parts: [...path.getAttribute("d").matchAll(/([MHV])([\d.]+)(?: ([\d.]+))?/g)].map(([, to, a, b]) => [to, +a, +b]) };
  });
  const heads = [...over.querySelectorAll(".head")].map((head) => ({ head, texts: [...head.querySelectorAll("text")] }));
  const segments = [];
  for (let i = 0, at = 0; i < run.path.length; i += 3) {
    at += run.path[i];
    segments.push([at, at += run.path[i + 1], run.names[run.path[i + 2]]]);
  }

  const firstBehind = (ends, ticks) => {
    let low = 0, high = ends.length;
    while (low < high) { const middle = (low + high) >> 1; if (ends[middle] > ticks) high = middle; else low = middle + 1; }
    return low;
  };
  const drawStrokes = (labels) => {
    for (const { path, y, high, starts, ends, name, named } of strokes) {
      let drawn = "", end = -9;
      for (let i = firstBehind(ends, from); i < starts.length && starts[i] < to; i++) {
        const a = Math.max(x(starts[i]), -5), b = Math.max(Math.min(x(ends[i]), width + 5), a + 1);
        if (b <= end) continue;
        drawn += `M${Math.max(a, end).toFixed(1)} ${y}H${b.toFixed(1)}`;
        end = b;
        const left = Math.max(a, 0), room = Math.min(b, width) - left;
        const text = named && room > 24 ? cut(name.split(" · ")[0], Math.floor((room - 6) / 6.3)) : "";
        if (text) labels.push(make("text", { x: left + 3, y: y - high / 2 + (high > 20 ? 11 : high - 4) }, text));
      }
      path.setAttribute("d", drawn);
    }
  };
  const drawLines = () => {
    for (const { path, parts } of lines) {
      let drawn = "", at = 0, level = 0, shown = false;
      const base = parts[0][2];  // of the curve, which is closed there; a link is a move and a V
      const link = path.classList.contains("links");
      const seen = link ? parts.filter(([what, a]) => what === "M" && a >= from && a <= to).length : 0;
      path.classList.toggle("crowded", seen > width / 8);
      for (const [what, a, b] of parts) {
        if (what === "M") [at, level, shown] = [x(a), b, false];
        if (what === "H") {
          const before = at;
          at = x(a);
          if (at < -2 || before > width + 2) continue;
          drawn += `${shown ? "" : `M${Math.max(before, -2).toFixed(1)} ${base}V${level}`}H${Math.min(at, width + 2).toFixed(1)}`;
          shown = true;
        }
        if (what === "V") {
          if (link && at >= -2 && at <= width + 2) drawn += `M${at.toFixed(1)} ${level}`;
          if (link ? at >= -2 && at <= width + 2 : shown) drawn += `V${a}`;
          level = a;
        }
      }
      path.setAttribute("d", drawn && !link ? `${drawn}V${base}` : drawn);
    }
  };
  const drawHeads = () => {
    let free = -1;
    over.classList.toggle("crowded", run.steps.filter(([, start, end]) => end > from && start < to).length > width / 12);
    run.steps.forEach(([number, start, end, head, cause], i) => {
      const a = x(start), wide = Math.max(x(end) - a, 0), left = Math.max(-a, 0), room = Math.min(wide, width - a) - left - 6;
      const { head: element, texts } = heads[i];
      element.setAttribute("x", a); element.setAttribute("width", wide);
      const several = Math.floor(room / 6.4);
      const text = several >= head.length ? head : a > free ? String(number) : "";
      element.setAttribute("class", a > width || a + wide < 0 ? "head away" : "head");
      if (text) free = Math.max(a, 0) + 7.5 * text.length + 6;
      texts.forEach((one, row) => { one.setAttribute("x", left + 4); one.textContent = row ? cut(cause, Math.floor(room / 6.2), 14) : text; });
      element.style.overflow = several < text.length ? "visible" : "hidden";
    });
  };
  const drawTimes = () => {
    const step = roundStep(inSeconds(to - from) / Math.max(width / 110, 2));
    const times = [], first = Math.ceil(when(from) / step - 1e-9);
    for (let i = first; i * step <= when(to); i++) {
      const at = x((i * step - run.start) / run.seconds * run.ticks);
      const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      if (at < width - 20) times.push(make("text", { x: at, y: height - 6, "text-anchor": at < 12 ? "start" : "middle" }, `${(i * step).toFixed(places)} s`));
    }
    over.querySelector(".times").replaceChildren(...times);
  };
  const draw = (view) => {
    ({ from, to, width } = view);
    bars.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const labels = [];
    drawStrokes(labels); drawLines(); drawHeads(); drawTimes();
    over.querySelector(".labels").replaceChildren(...labels);
    const shown = run.steps.find(([, start, end]) => Math.abs(start - from) + Math.abs(end - to) < (to - from) / 5);
    choice.value = shown && to - from < run.ticks ? shown[0] : "";
  };
  const showStep = (number) => {
    const step = run.steps.find(([one]) => one === +number);
    if (!step) return;
    const room = (step[2] - step[1]) * 0.03;
    show(step[1] - room, step[2] + room);
  };
  const next = (by) => {
    const middle = (from + to) / 2, whole = to - from >= run.ticks * 0.999;
    const at = whole ? (by > 0 ? -1 : run.steps.length) : run.steps.findIndex(([, , end]) => end > middle);
    const step = run.steps[Math.min(Math.max(at + by, 0), run.steps.length - 1)];
    if (step) showStep(step[0]);
  };

  // What lies under the pointer: the bar there or next to it, and who was waited for then.
  const under = (px, py) => {
    const ticks = from + px / width * (to - from), near = 3 / width * (to - from);
    let best, distance = near;
    for (const one of strokes) {
      if (Math.abs(one.y - py) > one.high / 2 + 0.5) continue;
      const at = firstBehind(one.ends, ticks);
      for (const i of [at - 1, at]) {
        if (!(i in one.starts)) continue;
        const away = Math.max(one.starts[i] - ticks, ticks - one.ends[i], 0);
        if (away <= distance) { distance = away; best = [one, i]; }
      }
    }
    const step = run.steps.find(([, start, end]) => start <= ticks && ticks < end);
    const waited = segments.find(([start, end]) => start <= ticks && ticks < end);
    const said = [];
    if (best) {
      const [one, i] = best;
      const numbers = one.notes?.[i].split(" ");
      const more = numbers ? ` (${run.words.runs.replace(/\{(\d)\}/g, (_, n) => numbers[n])})` : "";
      said.push(`${one.name}: ${length(inSeconds(one.ends[i] - one.starts[i]))} @ ${when(one.starts[i]).toFixed(3)} s${more}`);
    }
    if (step) said.push([step[3], step[4]].filter(Boolean).join(": "));
    if (waited) said.push(`${run.words.awaited}: ${waited[2]}, ${length(inSeconds(waited[1] - waited[0]))}`);
    return said.join("\n");
  };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    if (!event.buttons) about.textContent = under(event.clientX - box.left, event.clientY - box.top);
  });
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    about.textContent = under(event.clientX - box.left, event.clientY - box.top);
  });
  choice.addEventListener("change", () => choice.value ? showStep(choice.value) : show(0, run.ticks));
  const follow = () => { if (location.hash.startsWith("#step-")) showStep(location.hash.slice(6)); };
  addEventListener("hashchange", follow);
  for (const link of document.querySelectorAll('a[href^="#step-"]')) {
    link.addEventListener("click", (event) => {  // also where the address is the same again
      event.preventDefault();
      history.replaceState(null, "", link.hash);
      follow();
      picture.scrollIntoView({ block: "nearest" });
    });
  }
  const show = zoomable(picture, {
    whole: run.ticks, least: run.ticks / 1000, draw,
    does: { next: () => next(1), before: () => next(-1) }, keys: { n: "next", p: "before" },
  });
  follow();
}

for (const command of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = command.dataset.copy;
  button.addEventListener("click", () => {
    const code = command.querySelector("code");
    getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) navigator.clipboard?.writeText(code.textContent);
  });
  command.prepend(button);
}
