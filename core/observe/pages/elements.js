// Elements, numbers, the pointer's box and the theme: what every page begins with. A page loads nothing and needs
// no network. Whatever a model wrote reaches it as text: elements are made by make(), never from markup.
'use strict';
const color = name => 'var(--' + name + ')';

// --- elements and numbers ---

// make('p.note', 'text', child, {id: 'x', onclick: f}): strings are text, objects attributes, nodes children.
function make(tag, ...parts) {
  const [name, ...classes] = tag.split('.');
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(' ');
  for (const part of parts.flat()) {
    if (part === null || part === undefined || part === '') continue;
    if (part instanceof Node || typeof part !== 'object') { node.append(part); continue; }
    for (const [key, value] of Object.entries(part)) {
      if (typeof value === 'function') node[key] = value; else node.setAttribute(key, value);
    }
  }
  return node;
}
function draw(tag, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  return node;
}
function number(v, percent) {
  if (percent) { const p = 100 * v; return (Math.abs(p - Math.round(p)) < .05 ? p.toFixed(0) : p.toFixed(1)) + '%'; }
  const a = Math.abs(v);
  if (a >= 1e9) return +(v / 1e9).toPrecision(3) + 'G';
  if (a >= 1e6) return +(v / 1e6).toPrecision(3) + 'M';
  if (a >= 1e4) return +(v / 1e3).toPrecision(3) + 'k';
  if (a >= 100) return String(Math.round(v));
  return a === 0 ? '0' : a < 1e-4 ? v.toExponential(1) : String(+v.toPrecision(3));
}
// A tick, with the digits that tell it from its neighbours `step` away.
function tick(v, step, percent) {
  if (percent || Math.abs(v) >= 1e4) return number(v, percent);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return digits > 5 ? v.toExponential(1) : v.toFixed(digits);
}
function duration(s) {
  if (s >= 5400) return Math.floor(s / 3600) + ' h ' + Math.round(s % 3600 / 60) + ' min';
  if (s >= 120) return Math.floor(s / 60) + ' min ' + Math.round(s % 60) + ' s';
  return s >= 1 ? +s.toPrecision(3) + ' s' : +(1e3 * s).toPrecision(3) + ' ms';
}
function clock(s) { return s >= 120 ? Math.floor(s / 60) + ':' + String(Math.floor(s % 60)).padStart(2, '0') : +s.toPrecision(4) + ' s'; }
function bytes(b) { return b >= 1e9 ? (b / 1e9).toFixed(2) + ' GB' : b >= 1e6 ? (b / 1e6).toFixed(0) + ' MB' : (b / 1e3).toFixed(0) + ' kB'; }
// Ticks at 1, 2 or 5 times a power of ten, about `count` of them.
function ticks(lo, hi, count) {
  if (!(hi > lo)) return [];
  const power = 10 ** Math.floor(Math.log10((hi - lo) / count)), share = (hi - lo) / count / power;
  const step = power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10), out = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + 1e-9 * step; ++k) out.push(k === 0 ? 0 : k * step);
  return out;
}
const mean = list => list.reduce((sum, x) => sum + x, 0) / list.length;

// --- what the pointer shows ---

function showTip(event, lines) {
  tip.replaceChildren(...lines);
  tip.style.display = 'block';
  const left = event.clientX + 14 + tip.offsetWidth > innerWidth - 8 ? event.clientX - tip.offsetWidth - 14 : event.clientX + 14;
  const top = event.clientY - tip.offsetHeight - 10;
  tip.style.left = Math.max(4, left) + 'px';
  tip.style.top = (top < 4 ? event.clientY + 18 : top) + 'px';
}
function hideTip() { tip.style.display = 'none'; }

// --- the frame of a page ---

const page = document.getElementById('page'), nav = document.getElementById('nav'), tip = document.getElementById('tip');
const repaint = [];  // what is drawn in pixels and colours, and so again in another size or theme
const theme = make('button.plain.theme', {type: 'button'});
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  theme.textContent = dark ? 'light' : 'dark';
  theme.title = 'show the page in ' + theme.textContent + ' colours';
  repaint.forEach(f => f());
}
theme.onclick = () => setTheme(document.documentElement.dataset.theme !== 'dark');
const prefers = matchMedia('(prefers-color-scheme: dark)');
prefers.onchange = () => setTheme(prefers.matches);
setTheme(prefers.matches);
addEventListener('resize', () => repaint.forEach(f => f()));

// A heading and what is under it, with a link in the bar; nothing where there is no content.
// Returns its note, which may change.
function section(into, id, title, note, ...content) {
  content = content.filter(Boolean);
  if (!content.length) return;
  const small = make('small', note || '');
  into.append(make('h2', {id}, title, small), ...content);
  theme.before(make('a', {href: '#' + id}, title));
  return small;
}
function badge(kind, text) { return make('span.badge.' + kind, text); }
function switchOf(names, chosen, choose) {
  const buttons = names.map((name, i) => make('button', name, {type: 'button', 'aria-pressed': i === chosen, onclick: () => {
    buttons.forEach((b, k) => b.setAttribute('aria-pressed', k === i));
    choose(i);
  }}));
  return make('span.switch', buttons);
}
