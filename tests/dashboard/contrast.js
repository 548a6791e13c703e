// The lowest contrast of text with what is behind it, by the formula of WCAG.
() => {
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.match(/[\d.]+/g).map((v) => linear(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!/, 0\)|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const all = [...document.querySelectorAll("h2, h3, p, dt, dd, td, th, a, button, .tag, label")];
  const texts = all.filter((e) => e.innerText && e.offsetWidth > 1 && !e.disabled);
  return Math.min(...texts.map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}
