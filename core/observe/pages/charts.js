// Curves. A Run is what one run's data says (core/observe/report.h); chart() draws series of one or of several.

// --- the data of a run ---

class Run {
  constructor(data, hue) {
    this.hue = hue || 'blue';
    this.take(data);
  }
  take(data) {
    Object.assign(this, data);
    const config = this.values || {};
    this.kind = this.facts.job === 'rl' && (config['model.policy'] || this.has('eval/return/mean')) ? 'control' : this.facts.job || 'rl';
    this.title = this.facts.name || this.folder;
  }
  has(name) { return this.metrics[name] !== undefined; }
  // [[step, value], ...] of the first of these metrics that has values.
  metric(...names) {
    const m = this.metrics[names.find(name => this.has(name))];
    return m ? m.y.map((y, i) => [this.steps[m.x][i], y]) : [];
  }
  last(...names) { const points = this.metric(...names); return points.length ? points[points.length - 1][1] : undefined; }
  // A speed of the whole run, as its end says it: what all steps did by the time that they took.
  rate(name) {
    const times = new Map(this.metric('timing_s/step', 'perf/time_per_step'));
    let done = 0, seconds = 0;
    for (const [step, value] of this.metric(name)) {
      const took = times.size ? times.get(step) ?? 0 : 1;
      done += value * took;
      seconds += took;
    }
    return seconds > 0 ? done / seconds : undefined;
  }
  of(what, ...names) { const name = names.find(n => this.has(n)); return name && this.metrics[name][what]; }
  // Held-out pairs are measured before the first step, too; that is a value of its own in the first step's line.
  heldOut(...names) {
    const name = names.find(n => this.has(n));
    if (!name) return [];
    const before = this.metric(name + '/before');
    return before.length ? [[before[0][0] - 1, before[0][1]], ...this.metric(name)] : this.metric(name);
  }
  // Seconds of the run at a step.
  secondsAt(step) {
    const c = this.clock;
    if (!c.length) return step;
    let lo = 0, hi = c.length - 1;
    while (hi - lo > 1) { const m = (lo + hi) >> 1; if (c[m][0] < step) lo = m; else hi = m; }
    const [a, s] = c[lo], [b, t] = c[hi];
    return b > a ? Math.max(0, s + (t - s) * (step - a) / (b - a)) : s;
  }
}

// --- charts ---

let byTime = false;
const redraw = new Set();  // charts that follow the choice of the axis
const box = {width: 400, height: 205, left: 44, right: 392, top: 10, bottom: 180};

// Exponential moving average, weights 0.8^k of the points so far.
function smoothed(points) {
  let sum = 0, weight = 0;
  return points.map(([x, y]) => { sum = .8 * sum + y; weight = .8 * weight + 1; return [x, sum / weight]; });
}
function axisSwitch() {
  return switchOf(['by step', 'by time'], byTime ? 1 : 0, i => { byTime = i === 1; redraw.forEach(paint => paint()); });
}

// options: title, note, percent, min, max, stacked.
// series: {run, name, color, points, smooth, dots, thin, band: points of the other edge}; points by step.
// The figure's update(series) draws what has come since.
function chart(options, series) {
  const legend = make('div.legend'), svg = draw('svg', {viewBox: `0 0 ${box.width} ${box.height}`, role: 'img', 'aria-label': options.title});
  const hidden = new Set();  // names
  function paint() {
    const shown = series.filter(s => !hidden.has(s.name)).map(s => {
      const move = list => list.map(([x, y]) => [byTime ? s.run.secondsAt(x) : x, y, x]);
      return {...s, points: move(s.points), band: s.band && move(s.band)};
    });
    svg.replaceChildren();
    if (!shown.length) return;
    const xs = shown.flatMap(s => s.points.map(p => p[0]));
    let x0 = Math.min(...xs), x1 = Math.max(...xs), y0, y1;
    if (options.stacked) {
      const pitch = shown[0].points.length > 1 ? (x1 - x0) / (shown[0].points.length - 1) : 1;
      x0 -= pitch / 2; x1 += pitch / 2; y0 = 0;
      y1 = 1.06 * Math.max(...shown[0].points.map((p, i) => shown.reduce((sum, s) => sum + s.points[i][1], 0))) || 1;
    } else {
      const ys = shown.flatMap(s => s.points.concat(s.band || []).map(p => p[1]));
      y0 = Math.min(...ys); y1 = Math.max(...ys);
      const slack = y1 > y0 ? .06 * (y1 - y0) : (.5 * Math.abs(y1) || 1);
      // Zero is a landmark: a curve that is never negative starts there, if it is not far away.
      y0 = options.min ?? (y0 >= 0 && y0 < .6 * y1 + 1e-12 ? 0 : y0 - slack);
      y1 = options.max ?? y1 + slack;
    }
    if (!(x1 > x0)) x1 = x0 + 1;
    if (!(y1 > y0)) y1 = y0 + 1;
    const X = x => box.left + (x - x0) / (x1 - x0) * (box.right - box.left);
    const Y = y => box.bottom - (Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0) * (box.bottom - box.top);
    const text = (x, y, anchor, words) => { const t = draw('text', {class: 'tick', x, y, 'text-anchor': anchor}); t.textContent = words; svg.append(t); };
    const marks = ticks(y0, y1, 5);
    for (const y of marks) {
      svg.append(draw('line', {class: 'grid', x1: box.left, x2: box.right, y1: Y(y), y2: Y(y)}));
      text(box.left - 7, Y(y) + 3.5, 'end', tick(y, marks[1] - marks[0] || 1, options.percent));
    }
    for (const x of ticks(x0, x1, 6)) {
      if (!byTime && x !== Math.floor(x)) continue;
      text(X(x), box.bottom + 17, 'middle', byTime ? clock(x) : number(x));
    }
    svg.append(draw('line', {class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}));
    const path = points => points.map(p => X(p[0]).toFixed(1) + ',' + Y(p[1]).toFixed(1)).join(' ');
    if (options.stacked) {
      const width = Math.max(.6, .82 * (box.right - box.left) / shown[0].points.length), below = shown[0].points.map(() => 0);
      for (const s of shown) s.points.forEach(([x, y], i) => {
        const height = Y(below[i]) - Y(below[i] + y);
        if (height > .05) svg.append(draw('rect', {x: X(x) - width / 2, y: Y(below[i] + y), width, height, style: 'fill:' + s.color}));
        below[i] += y;
      });
    } else for (const s of shown) {
      const smooth = s.smooth && s.points.length >= 12, style = 'stroke:' + s.color;
      if (s.band && s.points.length > 1) {
        svg.append(draw('polygon', {class: 'band', style: 'fill:' + s.color, points: path(s.band) + ' ' + path([...s.points].reverse())}));
      } else if (s.band) {
        svg.append(draw('line', {class: 'line', style, x1: X(s.points[0][0]), x2: X(s.points[0][0]), y1: Y(s.points[0][1]), y2: Y(s.band[0][1])}));
      }
      if (!s.band || s.points.length > 1) svg.append(draw('polyline', {class: smooth || s.band ? 'line faint' : 'line', style, points: path(s.points)}));
      if (smooth) svg.append(draw('polyline', {class: 'line', style, points: path(smoothed(s.points))}));
      if (s.dots || (s.points.length === 1 && !s.band)) for (const [x, y] of s.points) svg.append(draw('circle', {class: 'dot', r: 3.4, style, cx: X(x), cy: Y(y)}));
    }
    const cross = draw('line', {class: 'cross', y1: box.top, y2: box.bottom});
    svg.append(cross);
    svg.onpointerleave = () => { hideTip(); cross.style.visibility = 'hidden'; };
    svg.onpointermove = event => {
      const r = svg.getBoundingClientRect(), at = (event.clientX - r.left) * box.width / r.width;
      if (at < box.left - 6 || at > box.right + 6) return svg.onpointerleave();
      const x = x0 + (at - box.left) / (box.right - box.left) * (x1 - x0);
      const nearest = list => list.reduce((best, p) => Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best);
      const best = nearest(shown.map(s => nearest(s.points))), run = shown[0].run;
      const lines = [make('div', byTime ? clock(best[0]) : 'step ' + Math.round(best[2]),
                          !byTime && shown.every(s => s.run === run) && run.clock.length ? ', ' + clock(run.secondsAt(best[2])) : '')];
      for (const s of shown) {
        const i = s.points.indexOf(nearest(s.points)), p = s.points[i];
        if (Math.abs(p[0] - best[0]) > (x1 - x0) / 60) continue;
        const value = s.band && s.band[i] ? number(p[1], options.percent) + ' to ' + number(s.band[i][1], options.percent) : number(p[1], options.percent);
        lines.push(make('div', make('i', {style: 'background:' + s.color}), s.name + ' ', make('b', value)));
      }
      cross.setAttribute('x1', X(best[0])); cross.setAttribute('x2', X(best[0])); cross.style.visibility = 'visible';
      showTip(event, lines);
    };
  }
  const figure = make('figure.card', make('figcaption', make('h3', options.title), legend), svg, options.note ? make('p.note', options.note) : null);
  figure.update = fresh => {
    series = fresh.filter(s => s.points.length);
    legend.replaceChildren(...series.map(s => {
      const last = list => number(list[list.length - 1][1], options.percent);
      const entry = make('button', {type: 'button', title: 'last value; press to hide or show'}, make('i', {style: 'background:' + s.color}), s.name + ' ',
                         make('b', s.band ? last(s.points) + ' – ' + last(s.band) : last(s.points)));
      entry.classList.toggle('off', hidden.has(s.name));
      entry.onclick = () => { if (!hidden.delete(s.name)) hidden.add(s.name); entry.classList.toggle('off'); paint(); };
      return entry;
    }));
    paint();
  };
  figure.update(series);
  redraw.add(paint);
  return figure;
}

// --- which curves a job has ---

const share = {percent: true, min: 0, max: 1.02};
const generates = run => run.kind === 'rl' || run.kind === 'control';
const isPairs = run => run.kind === 'dpo' || run.kind === 'reward_model';
const of = (...names) => run => run.metric(...names);
const ofRows = (...names) => run => run.kind === 'control' ? [] : run.metric(...names);  // of a control task the reward is the return
const ofRollout = (...names) => run => generates(run) ? run.metric(...names) : [];
const pairs = what => of('dpo/' + what, 'reward_model/' + what);
const heldPairs = what => run => isPairs(run) ? run.heldOut('eval/' + what, 'eval/dpo/' + what, 'eval/reward_model/' + what) : [];
const smooth = {smooth: true}, dots = {dots: true};

// A line: name, colour, points of a run, more; of several runs each card shows its first line without a band, in the
// colours of the runs. Notes by kind of job where they differ.
const cards = [
  {title: 'Reward', note: {control: 'mean return of the episodes that ended in a step', '': 'mean score of the samples of a step'},
   lines: [['reward', 'blue', of('critic/score/mean'), smooth]]},
  {title: 'Held-out return', note: 'mean of episodes that are never trained on, with its 95 % interval',
   lines: [['mean', 'green', of('eval/return/mean'), dots], ['95 %', 'grey', of('eval/return/low'), {band: of('eval/return/high')}]]},
  {title: 'Held-out reward', note: 'mean reward of the answers to held-out rows, which are never trained on, with its 95 % interval',
   lines: [['mean', 'green', ofRows('eval/reward/mean'), dots], ['95 %', 'grey', ofRows('eval/reward/low'), {band: ofRows('eval/reward/high')}]]},
  {title: 'Held-out reward by function', note: 'unweighted means on held-out rows', each: run => {
    if (run.kind === 'control') return [];
    const names = Object.keys(run.metrics).map(name => (/^eval\/reward\/(.+)\/mean$/.exec(name) || [])[1]).filter(Boolean);
    return names.length < 2 ? [] : names.map((name, i) => [name, colours[i % colours.length], of('eval/reward/' + name + '/mean'), dots]);
  }},
  {title: 'Held-out accuracy', ...share,
   note: {rl: 'share of held-out questions (or episodes), answered greedily, whose first reward is above 0.5', control: 'share of held-out episodes that count as solved',
          '': 'on held-out rows, which are never trained on'},
   lines: [['accuracy', 'green', run => isPairs(run) ? [] : run.heldOut('eval/accuracy'), dots]]},
  {title: 'Loss', note: {dpo: 'mean over the pairs of a step, and over held-out pairs', reward_model: 'mean over the pairs of a step, and over held-out pairs',
                         sft: 'negative log-probability of a wanted token, in nats', distill: 'divergence from the teacher, in nats a token', control: 'mean over the environment steps of a batch', '': 'mean over the tokens of a step'},
   lines: [['training', 'blue', run => isPairs(run) ? pairs('loss')(run) : run.metric('sft/loss', 'distill/loss', 'actor/loss'), smooth],
           ['held out', 'green', run => isPairs(run) ? heldPairs('loss')(run) : run.heldOut('eval/loss', 'eval/sft/loss', 'eval/distill/loss'), dots]]},
  {title: 'Pairs ranked right', note: {dpo: 'share of pairs whose chosen answer has the larger implicit reward; before the first step all are tied, which counts as wrong', '': 'share of pairs whose chosen answer has the larger score'}, ...share,
   lines: [['training', 'blue', pairs('accuracy'), smooth], ['held out', 'green', heldPairs('accuracy'), dots]]},
  {title: 'Margin', note: {dpo: 'implicit reward of the chosen answer minus that of the rejected one', '': 'score of the chosen answer minus that of the rejected one'},
   lines: [['training', 'blue', pairs('margin'), smooth], ['held out', 'green', heldPairs('margin'), dots]]},
  {title: 'Chosen and rejected', note: {dpo: 'mean implicit reward, β times the log-probability over that of the reference', '': 'mean score'},
   lines: [['chosen', 'green', pairs('chosen'), smooth], ['rejected', 'pink', pairs('rejected'), smooth]]},
  {title: 'Agreement with the teacher', note: 'share of tokens where both hold the same one for likeliest', ...share, lines: [['agreement', 'green', of('distill/agreement'), smooth]]},
  {title: 'Groups without a signal', ...share,
   note: 'share of groups whose rewards are all equal, which teach nothing when advantages are relative to the group; of these, where the first reward is 0 or 1, all wrong and all right',
   lines: [['all equal', 'pink', of('reward/frac_reward_zero_std'), smooth], ['all wrong', 'grey', of('reward/solve_none')], ['all right', 'green', of('reward/solve_all')]]},
  {title: 'Response length', note: 'tokens', lines: [['mean', 'blue', of('response_length/mean'), smooth], ['max', 'grey', of('response_length/max')]]},
  {title: 'Answers cut at the limit', note: 'share of samples that reached rollout.max_new_tokens', ...share, lines: [['cut', 'amber', of('response_length/clip_ratio'), smooth]]},
  {title: 'Episode length', note: 'environment steps', lines: [['mean', 'blue', of('episode/length/mean'), smooth]]},
  {title: 'Turns', note: 'turns of the policy in a sample', lines: [['mean', 'blue', run => run.kind === 'rl' ? run.metric('turns/mean') : [], smooth]]},
  {title: 'Lag', note: 'versions between the weights that sampled a token and those trained', min: 0,
   lines: [['mean', 'violet', ofRollout('staleness/mean')], ['max', 'grey', ofRollout('staleness/max')]]},
  {title: 'Throughput', note: {rl: 'tokens a second: generated; prompt and response tokens of the batch', control: 'environment steps a second', '': 'tokens trained a second'}, min: 0,
   lines: [['generated', 'teal', ofRollout('rollout/tok_s'), smooth], ['batch', 'blue', of('perf/throughput'), smooth]]},
  {title: "Where a step's time goes", note: 'seconds; phases that overlap add up to more than the step', stacked: true, each: phases},
  {title: 'Time per step', note: 'seconds', onlySeveral: true, lines: [['step', 'blue', of('timing_s/step'), smooth]]},
  {title: 'Gradient norm', note: 'global L2, before clipping', lines: [['norm', 'green', of('actor/grad_norm'), smooth]]},
  {title: 'Rollout against trainer', note: '|Δ log-prob| of the same tokens, in nats; 0 in deterministic mode',
   lines: [['max', 'pink', of('training/rollout_logp_diff/max')], ['mean', 'grey', of('training/rollout_logp_diff/mean')]]},
  {title: 'Policy entropy', note: 'nats per token', lines: [['entropy', 'teal', of('actor/entropy'), smooth]]},
  {title: 'Clipping and KL', note: 'share of clipped tokens; KL from the sampling policy, in nats',
   lines: [['clipped', 'amber', of('actor/pg_clipfrac')], ['KL', 'blue', of('actor/ppo_kl')]]},
  {title: 'KL to the reference', note: 'nats per token', lines: [['KL', 'blue', of('ref/kl'), smooth]]},
  {title: 'Value function', note: 'share of the variance of returns that the critic explains', max: 1.02, lines: [['explained', 'violet', of('critic/vf_explained_var'), smooth]]},
];
const colours = ['blue', 'amber', 'green', 'pink', 'violet', 'teal', 'rust', 'grey'];

// Seconds of a step by phase; only steps whose whole time is known, so that every bar adds up.
function phases(run) {
  const kinds = [['gen', 'generate', 'blue'], ['reward', 'reward', 'amber'], ['update_actor', 'update', 'green'], ['update_weights', 'weights', 'violet'], ['save', 'save', 'pink']];
  const whole = run.metric('timing_s/step'), bins = Math.min(whole.length, 120);
  const binned = points => {
    const at = new Map(points), out = [];
    for (let i = 0; i < bins; ++i) {
      const part = whole.slice(Math.floor(i * whole.length / bins), Math.floor((i + 1) * whole.length / bins));
      out.push([part[part.length - 1][0], mean(part.map(([x]) => Math.max(0, at.get(x) || 0)))]);
    }
    return out;
  };
  const lines = kinds.map(([key, name, hue]) => [name, hue, binned(run.metric('timing_s/' + key))]).filter(line => line[2].some(p => p[1] > 0));
  if (!lines.length) return [];
  // Phases overlap in split placement; then nothing is left over.
  lines.push(['other', 'pale', binned(whole).map(([x, y], i) => [x, Math.max(0, y - lines.reduce((sum, line) => sum + line[2][i][1], 0))])]);
  return lines.map(([name, hue, points]) => [name, hue, () => points]);
}

// [options, series] of every card that has something to show.
function curvesOf(runs) {
  const list = [];
  for (const card of cards) {
    let series = [];
    const put = ([name, hue, points, more = {}], run, own) => {
      const {band, ...rest} = more;
      return {run, name: own || name, color: color(own ? run.hue : hue), points: points(run), band: band && band(run), ...rest};
    };
    if (runs.length === 1) {
      if (!card.onlySeveral) series = (card.each ? card.each(runs[0]) : card.lines).map(line => put(line, runs[0]));
    } else if (card.lines) {
      const line = card.lines.find(l => runs.some(run => l[2](run).length));
      if (line) series = runs.map(run => put(line, run, run.label));
    }
    series = series.filter(s => s.points.length && (!s.band || s.band.length === s.points.length));
    const kinds = new Set(runs.map(run => run.kind)), kind = kinds.size === 1 ? runs[0].kind : '';
    if (series.length < (kinds.size > 1 ? 2 : 1)) continue;  // jobs of different kinds: what they share
    list.push([{...card, note: typeof card.note === 'string' ? card.note : card.note[kind] ?? card.note['']}, series]);
  }
  return list;
}

// Every card of the runs; update(runs) draws what has come, and makes the cards anew where there are others now.
function curves(runs) {
  const grid = make('div.grid2');
  let titles = [], figures = [];
  grid.update = fresh => {
    const list = curvesOf(fresh), now = list.map(([options]) => options.title);
    if (now.join() === titles.join() && figures.length) return figures.forEach((figure, i) => figure.update(list[i][1]));
    titles = now;
    figures = list.map(([options, series]) => chart(options, series));
    grid.replaceChildren(...(figures.length ? figures : [make('p.empty', 'No metrics yet.')]));
  };
  grid.update(runs);
  return grid;
}

// Every metric there is, drawn when it is asked for; update(runs) draws what has come.
function allMetrics(runs) {
  const grid = make('div.grid2'), title = make('summary');
  const find = make('input', {type: 'search', placeholder: 'part of a name', 'aria-label': 'filter metrics by name'});
  const all = make('details', title, make('div.caption', find), grid);
  const namesOf = () => [...new Set(runs.flatMap(run => Object.keys(run.metrics)))].sort();
  const series = name => runs.map(run => ({run, name: runs.length > 1 ? run.label : '', color: color(run.hue), points: run.metric(name), smooth: true}));
  let shown = [], figures = [];
  all.update = () => {
    const names = namesOf(), wanted = names.filter(n => n.includes(find.value.trim())).slice(0, 60);
    title.textContent = 'Every metric (' + names.length + ')';
    all.hidden = !names.length;
    if (!all.open) return;
    if (wanted.join() === shown.join()) return figures.forEach((figure, i) => figure.update(series(shown[i])));
    shown = wanted;
    figures = wanted.map(name => chart({title: name}, series(name)));
    grid.replaceChildren(...figures);
  };
  find.oninput = all.ontoggle = all.update;
  all.update();
  return all;
}
