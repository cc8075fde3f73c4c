// Time lines: spans in lanes.

// --- time lines ---

const hues = {rollout: 'blue', reward: 'amber', train: 'green', weights: 'violet', eval: 'teal', checkpoint: 'pink', system: 'grey',
              environment: 'rust', actor: 'mint', moving: 'gold', lost: 'coal'};

// lanes: names; categories, names: words; spans: [lane, category, name, from, seconds, count] in order of start.
// words: what to call a category. Drag or turn the wheel with Ctrl to look closer, double-click for the whole.
function timeline(data, marks, words, start, end) {
  const row = data.lanes.length > 120 ? 7 : data.lanes.length > 40 ? 13 : 22, label = row > 10, foot = 24;
  const height = data.lanes.length * row + 6, canvas = make('canvas'), strip = make('div.strip', canvas);
  let from = start, to = end, drag = null, left = 12;
  const context = canvas.getContext('2d');
  const paint = () => {
    const width = strip.clientWidth, scale = devicePixelRatio || 1, css = getComputedStyle(document.documentElement);
    const hue = name => css.getPropertyValue('--' + name);
    canvas.width = width * scale; canvas.height = Math.min((height + foot) * scale, 32000); canvas.style.height = height + foot + 'px';
    context.setTransform(scale, 0, 0, canvas.height / (height + foot), 0, 0);
    context.clearRect(0, 0, width, height + foot);
    context.font = '11.5px ' + getComputedStyle(document.body).fontFamily;
    if (label) left = 20 + Math.min(130, width / 3, Math.max(...data.lanes.map(name => context.measureText(name).width)));
    const X = t => left + (t - from) / (to - from) * (width - left - 10);
    data.lanes.forEach((name, i) => {
      context.fillStyle = hue('well'); context.fillRect(left, i * row + 3, width - left - 10, row - Math.max(2, row / 4));
      if (!label) return;
      context.fillStyle = hue('soft'); context.textAlign = 'right'; context.fillText(name, left - 9, i * row + row * .7, left - 14);
    });
    context.save(); context.beginPath(); context.rect(left, 0, width - left - 10, height); context.clip();
    for (const [lane, category, , at, seconds] of data.spans) {
      if (at > to) break;
      if (at + seconds < from) continue;
      context.fillStyle = hue(hues[data.categories[category]] || 'grey');
      context.fillRect(X(at), lane * row + 3, Math.max(.7, X(at + seconds) - X(at)), row - Math.max(2, row / 4));
    }
    context.strokeStyle = hue('ink'); context.globalAlpha = .3; context.setLineDash([3, 3]);
    const visible = marks.filter(m => m >= from && m <= to);
    if (visible.length < width / 12) for (const m of visible) { context.beginPath(); context.moveTo(X(m), 0); context.lineTo(X(m), height); context.stroke(); }
    context.restore();
    context.fillStyle = hue('faint'); context.textAlign = 'center';
    for (const t of ticks(from, to, Math.max(3, width / 130))) context.fillText(clock(t), Math.min(X(t), width - context.measureText(clock(t)).width / 2), height + 14);
    if (drag) { context.fillStyle = hue('blue'); context.globalAlpha = .18; context.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height); context.globalAlpha = 1; }
    paint.time = px => from + (px - left) / (width - left - 10) * (to - from);
  };
  strip.zoomed = () => from > start || to < end || drag !== null;
  const look = (a, b) => { from = Math.max(start, a); to = Math.min(end, b); if (!(to > from)) { from = start; to = end; } paint(); };
  const place = event => { const r = canvas.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
  canvas.onpointerdown = event => { const [x] = place(event); if (x >= left) drag = {from: x, to: x}; };
  canvas.onpointermove = event => {
    const [x, y] = place(event);
    if (drag) { drag.to = Math.max(left, x); paint(); return hideTip(); }
    const lane = Math.floor((y - 3) / row), t = paint.time(x), near = (to - from) / 600;
    const hit = x >= left && data.spans.find(s => s[0] === lane && s[3] - near <= t && t <= s[3] + s[4] + near);
    if (!hit) return hideTip();
    const category = data.categories[hit[1]], name = data.names[hit[2]];
    showTip(event, [make('div', data.lanes[lane]), make('div', make('i', {style: 'background:' + color(hues[category] || 'grey')}), words[category] || name || category),
                    make('div', clock(hit[3]) + ' to ' + clock(hit[3] + hit[4]) + ', ', make('b', duration(hit[4])), hit[5] > 1 ? ' in ' + hit[5] + ' spans' : '')]);
  };
  canvas.onpointerleave = () => { hideTip(); if (drag) { drag = null; paint(); } };
  canvas.onpointerup = () => {
    const d = drag; drag = null;
    if (d && Math.abs(d.to - d.from) > 6) look(paint.time(Math.min(d.from, d.to)), paint.time(Math.max(d.from, d.to))); else paint();
  };
  canvas.ondblclick = () => look(start, end);
  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const t = paint.time(place(event)[0]), factor = event.deltaY > 0 ? 1.25 : .8;
    look(t - (t - from) * factor, t + (to - t) * factor);
  }, {passive: false});
  repaint.push(paint);
  // A few steps from the middle, where the run is neither starting nor ending.
  const middle = Math.floor(marks.length / 2), buttons = [make('button', 'whole run', {type: 'button', onclick: () => look(start, end)})];
  if (marks.length >= 6) buttons.push(make('button', 'a few steps', {type: 'button', onclick: () => look(marks[middle - 1], marks[Math.min(middle + 3, marks.length - 1)])}));
  return {strip, buttons: make('span.switch', buttons)};
}

function legendOf(data, words, total) {
  const seconds = {};
  for (const s of data.spans) seconds[data.categories[s[1]]] = (seconds[data.categories[s[1]]] || 0) + s[4];
  return make('div.legend', Object.keys(seconds).map(c => make('span', make('i', {style: 'background:' + color(hues[c] || 'grey')}),
    (words[c] || c) + ' ', total ? make('b', number(seconds[c] / Object.values(seconds).reduce((a, b) => a + b), true)) : null)));
}

// What workers did: the trace, or else the phases of the metrics. Null where there is neither.
function traces(run) {
  let data = run.trace, note = 'Drag to look closer, double-click for the whole run. The files in trace/ open in ui.perfetto.dev with every span and its arguments.';
  if (!data.spans.length) {
    const kinds = [['gen', 'rollout'], ['reward', 'reward'], ['update_actor', 'train'], ['update_weights', 'weights'], ['save', 'checkpoint']];
    data = {lanes: ['phases of a step'], categories: kinds.map(k => k[1]), names: kinds.map(k => k[0]), spans: []};
    const times = kinds.map(([key]) => new Map(run.metric('timing_s/' + key)));
    for (const [step, seconds] of run.metric('timing_s/step')) {
      let at = run.secondsAt(step) - seconds;
      kinds.forEach((k, i) => { const s = times[i].get(step); if (s > 0) { data.spans.push([0, i, i, at, s, 1]); at += s; } });
    }
    note = 'There is no trace: this is made from the phase times of the metrics.';
  }
  if (!data.spans.length) return null;
  const end = data.spans.reduce((most, s) => Math.max(most, s[3] + s[4]), 0);
  const t = timeline(data, run.clock.filter(c => c[0] > 0).map(c => c[1]), {}, Math.min(0, data.spans[0][3]), end);
  return make('div.card', make('div.caption', t.buttons, legendOf(data, {})), t.strip, make('p.note', note));
}

// The tide: every slot over time, coloured by what it was for. One slot that never moves says nothing.
// steps: ends of optimizer steps, of a long run one of `steps_every`; times: [median, 90 %, longest].
function pool(p) {
  if (!p.spans.length || (p.lanes.length < 2 && p.moves === 0)) return null;
  const words = {rollout: 'generates', train: 'trains', actor: 'training role between steps', moving: 'changes hands', lost: 'without a worker'};
  const t = timeline(p, p.steps, words, p.spans[0][3], p.end_s);
  const spread = times => times.map(s => (1e3 * s).toFixed(1)).join(' / ');
  const rows = p.times.map(m => [m.from + ' to ' + m.to, m.done, m.rolled_back, spread(m.release_s), spread(m.grant_s), spread(m.whole_s)]);
  const moves = rows.length ? [make('div.caption', {style: 'margin-top:14px'}, 'How long slots took to change hands: milliseconds, median / 90 % / longest'),
    make('div.wide', grid(['move', 'done', 'rolled back', 'drain and release', 'grant', 'whole'], rows, {id: 'moves'}))] : [];
  const card = make('div.card', {id: 'tide'}, make('div.caption', t.buttons, legendOf(p, words, true)), t.strip,
              make('p.note', 'Dashed lines are ends of optimizer steps' + (p.steps_every > 1 ? ', one of ' + p.steps_every : '') + '.'), moves);
  card.zoomed = t.strip.zoomed;
  return card;
}
