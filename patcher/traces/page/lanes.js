
// The lanes, closer: their bars are scaled as they stand, the axis and the names of long bars are written anew.
for (const picture of document.querySelectorAll(".lanes")) {
  const bars = picture.querySelector(".bars"), over = picture.querySelector(".over");
  const [, , whole, height] = bars.getAttribute("viewBox").split(" ").map(Number);
  const ns = +picture.dataset.ns;
  const named = [...bars.querySelectorAll("rect:not(.gap, .others)")].map((bar) => {
    const [x, y, wide] = ["x", "y", "width"].map((name) => +bar.getAttribute(name));
    return { x, y, wide, name: bar.querySelector("title").textContent.split("\n")[0] };
  });
  const draw = ({ from, to, width }) => {
    bars.setAttribute("viewBox", `${from} 0 ${to - from} ${height}`);
    const place = (ticks) => (ticks - from) / (to - from) * width;
    const labels = [];
    for (const { x, y, wide, name } of named) {
      const left = Math.max(place(x), 0), room = Math.min(place(x + wide), width) - left;
      const text = room > 40 ? cut(name, Math.floor((room - 6) / 6)) : "";
      if (text) labels.push(make("text", { x: left + 3, y: y + 9.5 }, text));
    }
    over.querySelector(".labels").replaceChildren(...labels);
    const step = roundStep((to - from) / whole * ns / Math.max(width / 110, 2));
    const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([size]) => to / whole * ns >= size) ?? [1, "ns"];
    const places = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    const times = [];
    for (let i = Math.ceil(from / whole * ns / step - 1e-9); i * step <= to / whole * ns; i++) {
      const at = place(i * step / ns * whole);
      const shown = i ? `${(i * step / unit).toFixed(places)} ${name}` : "0";
      if (at < width - 24) times.push(make("text", { x: at, y: height - 6, "text-anchor": at < 24 ? "start" : "middle" }, shown));
    }
    over.querySelector(".times").replaceChildren(...times);
  };
  const show = zoomable(picture, { whole, least: whole / 1000, draw });
  picture.querySelector(".plot").addEventListener("click", (event) => {  // where no mouse shows titles
    const title = document.elementsFromPoint(event.clientX, event.clientY).map((one) => one.querySelector(":scope > title")).find(Boolean);
    if (title) picture.querySelector(".about").textContent = title.textContent.replaceAll("\n", " · ");
  });
  const follow = () => {  // to a place at which the device was free
    const frame = location.hash && bars.querySelector(`#${CSS.escape(location.hash.slice(1))}`);
    if (!frame) return;
    const [x, wide] = ["x", "width"].map((name) => +frame.getAttribute(name));
    show(x - 2 * wide, x + 3 * wide);
  };
  addEventListener("hashchange", follow);
  follow();
}
