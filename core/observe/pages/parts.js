// What a run's page is made of besides curves and time lines: figures, samples, tables, config.

function grid(head, rows, attributes) {
  const cell = (tag, x) => make(tag, x instanceof Node ? x : String(x));
  return make('table', attributes || {}, make('tr', head.map(h => make('th', h))), rows.map(row => make('tr', row.map(x => cell('td', x)))));
}

// --- head and figures ---

function stateBadge(state, exit) {
  const known = {finished: ['ok', 'finished'], stopped: ['mid', 'stopped before its last step'], failed: ['bad', exit ? 'failed, exit code ' + exit : 'failed'],
                 running: ['live', 'running'], warm_start: ['live', 'warm start'], dead: ['bad', 'its controller is gone'], new: ['mid', 'not begun'],
                 unreadable: ['bad', 'its journal cannot be read']};
  return badge(...(known[state] || ['live', 'no summary yet: running or interrupted']));
}
function facts(run) {
  const parts = [['run', run.folder], ['name', run.facts.name !== run.folder && run.facts.name], ['job', run.kind === 'control' ? 'rl, control' : run.facts.job], ['seed', run.facts.seed], ['Tidepool', run.facts.version],
                 ['commit', (run.facts.commit || '').slice(0, 12)]].filter(p => p[1]);
  return make('p.sub', parts.map(([k, v], i) => [i ? ' · ' : '', k + ' ', make('b', v)]).flat());
}

// The figures a person looks for first: [what, value, unit, more, 'good' or 'bad'].
function figuresOf(run) {
  const list = [], arrow = (a, b) => number(a) + ' → ' + number(b), percents = (a, b) => number(a, true) + ' → ' + number(b, true);
  const ends = points => [points[0][1], points[points.length - 1][1]];
  // First and last tenth of the steps: one step says little.
  const tenths = points => { const v = points.map(p => p[1]), n = Math.max(1, Math.floor(v.length / 10)); return [mean(v.slice(0, n)), mean(v.slice(-n))]; };
  const put = (what, value, unit, more, mood) => list.push([what, value, unit || '', more || '', mood || '']);
  const change = (what, points, text, more, lessIsBetter) => {
    if (!points.length) return;
    const [a, b] = ends(points), from = points[0][0], to = points[points.length - 1][0];
    // An old figure is not to be read as the present one.
    const when = points.length > 1 ? ', at step ' + number(from) + ' and step ' + number(to) : ', at step ' + number(to) + (to === 0 ? ' (before training)' : '') + ' alone';
    put(what, points.length > 1 ? text(a, b) : text(a, b).split(' → ')[1], '', more + when,
        points.length > 1 && (lessIsBetter ? b < a : b > a) ? 'good' : '');
  };
  const interval = name => {
    const low = run.last(name + '/low'), high = run.last(name + '/high');
    return low === undefined || high === undefined ? '' : ', 95 % interval ' + number(low) + ' to ' + number(high);
  };
  const graded = run.last('eval/total'), lost = run.last('eval/lost') || 0;
  const of = graded ? ' of ' + number(graded) + (lost ? ' of ' + number(graded + lost) + ' answers, the others are lost' : '') : '';
  if (graded === 0 && lost) put('held-out answers graded', 'none of ' + number(lost), '', 'newest evaluation; the log says why', 'bad');
  change('held-out return', run.metric('eval/return/mean'), arrow, 'mean of an episode' + interval('eval/return'));
  if (run.kind !== 'control') {
    change('held-out reward', run.metric('eval/reward/mean'), arrow, 'mean' + of + interval('eval/reward'));
    if (isPairs(run)) change('held-out pairs ranked right', run.kind === 'dpo' ? heldPairs('accuracy')(run).slice(1) : heldPairs('accuracy')(run), percents, 'share');
    else change('held-out accuracy', run.heldOut('eval/accuracy'), percents, run.kind === 'rl' ? 'greedy' + of : 'share' + of);
    if (run.kind === 'sft' || run.kind === 'distill') change('held-out loss', run.heldOut('eval/loss', 'eval/sft/loss'), arrow, 'nats a token', true);
  }
  if (isPairs(run)) {
    const right = pairs('accuracy')(run), margin = pairs('margin')(run);
    if (right.length) put('pairs ranked right', percents(...tenths(right)), '', 'in training, first and last tenth');
    if (margin.length) put('margin', arrow(...tenths(margin)), '', 'chosen minus rejected, first and last tenth');
  }
  const reward = run.metric('critic/score/mean');
  if (reward.length) put(run.kind === 'control' ? 'mean return' : 'mean reward', arrow(...tenths(reward)), '', 'first and last tenth of the steps');
  const loss = isPairs(run) ? pairs('loss')(run) : run.metric('sft/loss', 'distill/loss', 'actor/loss');
  if (!reward.length && loss.length) put('loss', arrow(...tenths(loss)), '', 'first and last tenth of the steps');
  const silent = run.metric('reward/frac_reward_zero_std');
  if (silent.length) {
    const now = tenths(silent)[1];
    put('groups without a signal', number(now, true), '', 'all rewards equal, last tenth of the steps', now > .8 ? 'bad' : '');
  }
  if (run.clock.length) {
    const [step, seconds] = run.clock[run.clock.length - 1], wanted = (run.values || {})['train.steps'];
    put('optimizer steps', number(step) + (wanted && +wanted !== step ? ' / ' + number(+wanted) : ''), '', 'in ' + duration(seconds));
  }
  const step = run.of('median', 'timing_s/step', 'perf/time_per_step');
  if (step !== undefined) put('time per step', number(step), 's', 'median');
  // The last step alone says little: the end of a run leaves little to generate.
  const speed = generates(run) ? ['rollout/tok_s', 'generated'] : ['perf/throughput', 'trained'];
  if (run.has(speed[0])) put('throughput', number(run.rate(speed[0])), run.kind === 'control' ? 'steps/s' : 'tok/s', speed[1] + ', mean of the steps; last step ' + number(run.last(speed[0])));
  const lag = generates(run) ? run.of('max', 'staleness/max') : undefined, gap = run.of('max', 'training/rollout_logp_diff/max');
  if (lag !== undefined) put('largest lag', number(lag), lag === 1 ? 'version' : 'versions', 'of any token trained on');
  if (gap !== undefined) put('max |Δ log-prob|', number(gap), '', 'rollout against trainer');
  const memory = Object.values(run.peak_bytes || {});
  if (memory.length) put('peak memory', bytes(memory.reduce((a, b) => a + b)), '', memory.length + ' processes together');
  return list;
}
function tiles(list) {
  return list.length ? make('section.tiles', list.map(([what, value, unit, more, mood]) => make('div.card.tile' + (mood ? '.' + mood : ''),
    make('div.k', what), make('div.v', value, unit ? make('small', unit) : null), make('div.d', more)))) : null;
}

// --- samples ---

// A sample: {prompt, text, reward, rewards, details {reward: what it said}, about, copies}, perhaps messages [{role, content}] before the answer, turns [{who, text}]
// of an episode, fields {name: text}.
function sampleCard(r, best) {
  const verdict = r.reward <= 0 ? ['miss', 'bad'] : r.reward >= best ? ['hit', 'ok'] : ['part', 'mid'];
  const said = (who, text, kind) => [make('p.who', who), make('pre' + (kind || ''), text || make('span.c', '(empty)'))];
  const before = r.messages && r.messages.length ? r.messages.flatMap(m => said(m.role, m.content)) : said('prompt', r.prompt);
  const answer = r.turns && r.turns.length ? r.turns.flatMap(t => said(t.who, t.text, t.who === 'policy' ? '.answer' : '')) : said('response', r.text, '.answer');
  const fields = Object.entries(r.fields || {}).map(([k, v]) => make('span', k + ' ' + v));
  const details = Object.entries(r.details || {}).flatMap(([name, text]) => said('detail of ' + name, text));
  return make('div.card.sample.' + verdict[0], before, answer, details,
    make('div.meta', make('span', make('span.badge.' + verdict[1], 'reward ' + number(r.reward) + r.rewards), r.copies > 1 ? make('b', ' ×' + r.copies) : null), make('span', r.about), fields));
}
// Buttons for steps, cards of the chosen one. load(step, show) gets the rows: [{step, rows}] are at hand in a report.
function sampleSteps(steps, load, titles) {
  const cards = make('div.samples');
  const buttons = steps.map((step, i) => make('button.plain', String(step), {type: 'button', title: titles ? titles[i] : '', onclick: () => show(i)}));
  const fill = rows => { const best = Math.max(0, ...rows.map(r => r.reward)); cards.replaceChildren(...rows.map(r => sampleCard(r, best))); };
  const show = i => { buttons.forEach((b, k) => b.setAttribute('aria-pressed', k === i)); load(steps[i], fill); };
  if (steps.length) show(steps.length - 1);
  return make('div', make('div.bar-of-steps', 'of step', buttons), cards);
}

// --- tables ---

function barTable(title, values, text, none) {
  const rows = Object.entries(values).filter(e => e[1] > 0).sort((a, b) => b[1] - a[1]);
  if (!rows.length && !none) return null;
  return make('div.card', make('h3', title), rows.length ? make('table', rows.map(([name, value]) => make('tr', make('td', name),
    make('td', {style: 'width:45%'}, make('span.bar', {style: 'width:' + (100 * value / rows[0][1]).toFixed(1) + '%'})), make('td.n', text(value))))) : make('p.empty', none));
}
function restores(list) {
  if (!list.length) return null;
  return make('div.card', make('h3', 'Restores'), grid(['at', 'from step', 'to step', 'by'],
    list.map(r => [duration(r.at_s), r.from, r.to, r.ckpt < 0 ? 'recovery copy' : 'checkpoint ' + r.ckpt])));
}

// Comments of a resolved config say where a value came from.
function configText(yaml) {
  const text = make('pre');
  const fill = only => {
    text.replaceChildren();
    const lines = yaml.split('\n'), kept = lines.filter(line => !only || !/ # (default|preset)\b/.test(line));
    // A section that lost all of its keys goes as well.
    const shown = kept.filter((line, i) => !only || !/^\s*[\w.]+:\s*$/.test(line) || /^\s/.test(kept[i + 1] || ''));
    for (const line of shown) {
      const at = line.startsWith('#') ? 0 : line.indexOf(' # ');
      text.append(at < 0 ? line : line.slice(0, at), at < 0 ? '' : make(line.slice(at) === ' # override' ? 'span.o' : 'span.c', line.slice(at)), '\n');
    }
  };
  fill(true);
  if (!yaml) text.append('config.yaml is not there');
  return make('details', make('summary', 'Config'), make('div.caption', switchOf(['set by file or command line', 'all keys'], 0, i => fill(i === 0))), text);
}
