
// What pictures along a time share: one can draw them closer, by keys, buttons, the wheel, dragging and two fingers.
const make = (name, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const cut = (text, room, least = 5) => {  // in the middle: both ends of a name say what it is
  const wide = [...text].filter((one) => one > "\u2e7f").length;  // a Chinese character has the room of two letters
  if (text.length + wide <= room) return text;
  const kept = Math.floor(room * text.length / (text.length + wide)) - 1;
  return kept < least ? "" : `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
};
const roundStep = (rough) => {  // of an axis: the next one of 1, 2, 5 or 10
  const ten = 10 ** Math.floor(Math.log10(rough));
  return ten * [1, 2, 5, 10].find((more) => ten * more >= rough);
};

// Of `whole` ticks, `draw` draws those from `from` to `to` on `width` pixels; `does` and `keys` are a picture's own.
const zoomable = (picture, { whole, least, draw, does: more = {}, keys: others = {} }) => {
  const plot = picture.querySelector(".plot");
  let from = 0, to = whole, width = 1, waiting = false;
  const redraw = () => {
    waiting = false;
    width = Math.max(plot.clientWidth, 1);
    draw({ from, to, width });
  };
  const show = (a, b) => {
    const wide = Math.min(Math.max(b - a, least), whole);
    from = Math.min(Math.max(a + (b - a - wide) / 2, 0), whole - wide);
    to = from + wide;
    if (!waiting) { waiting = true; requestAnimationFrame(redraw); }
  };
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
  const pan = (share) => show(from + (to - from) * share, to + (to - from) * share);
  const does = { whole: () => show(0, whole), closer: () => zoom(0.5), farther: () => zoom(2), earlier: () => pan(-0.3), later: () => pan(0.3), ...more };
  const keys = { "+": "closer", "=": "closer", "-": "farther", "−": "farther", ArrowLeft: "earlier", ArrowRight: "later", 0: "whole", Home: "whole", ...others };

  const pointers = new Map();
  const place = (event) => event.clientX - plot.getBoundingClientRect().left;
  plot.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, place(event)); plot.setPointerCapture(event.pointerId); });
  plot.addEventListener("pointermove", (event) => {
    const px = place(event), before = pointers.get(event.pointerId);
    if (before === undefined) return;
    const scale = (to - from) / width;
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other === undefined) show(from - (px - before) * scale, to - (px - before) * scale);
    else if (Math.abs(px - other) > 8) zoom(Math.abs(before - other) / Math.abs(px - other), from + other * scale);
    pointers.set(event.pointerId, px);
  });
  for (const name of ["pointerup", "pointercancel"]) plot.addEventListener(name, (event) => pointers.delete(event.pointerId));
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== plot) return;  // the page scrolls
    event.preventDefault();
    const scale = (to - from) / width;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + event.deltaX * scale, to + event.deltaX * scale);
    else zoom(Math.exp(Math.max(Math.min(event.deltaY, 100), -100) / 300), from + place(event) * scale);
  }, { passive: false });
  plot.addEventListener("dblclick", (event) => zoom(0.4, from + place(event) / width * (to - from)));
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    does[keys[event.key]]();
  });
  for (const button of picture.querySelectorAll("[data-do]")) button.addEventListener("click", () => does[button.dataset.do]());
  addEventListener("beforeprint", redraw);
  for (const element of picture.querySelectorAll("[hidden]")) element.hidden = false;
  new ResizeObserver(redraw).observe(plot);
  redraw();
  return show;
};
