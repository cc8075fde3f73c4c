// The dashboard's views. Each asks again and again for what is new, and rests while the page is not seen.

// --- the key ---

// It comes in the fragment of the printed address and is taken out of the address at once. It is shown to the
// server in a header and kept for this tab (loading the page again, following a link). A tab that has none, as of a
// link that was opened in a new one, gets it from the other tabs of this origin, the port included. No link holds it.
const kept = (() => {
  try { return sessionStorage; } catch { return {getItem: () => null, setItem() {}, removeItem() {}}; }  // forbidden: known until the page is left
})();
const tabs = new BroadcastChannel('key');
let key = kept.getItem('key') || '', refused = '';  // refused: the last one that the server did not take
function keepKey(fresh) {
  key = fresh;
  kept.setItem('key', key);
  document.dispatchEvent(new Event('key'));
}
function keyOfAddress() {
  const given = location.hash.startsWith('#key=') ? location.hash.slice(5) : '';
  if (!given) return;
  history.replaceState(null, '', location.pathname + location.search);
  keepKey(given);
  tabs.postMessage({key});  // some may wait for it
}
onhashchange = keyOfAddress;  // the address was opened in a tab that has the page
tabs.onmessage = ({data}) => {
  if (data.key === undefined) {
    if (key && key !== data.other) tabs.postMessage({key});
  } else if (!key && data.key !== refused) {
    keepKey(data.key);
  }
};
// Waits for a moment: another tab that has it answers within milliseconds.
async function keyOfOtherTab() {
  tabs.postMessage({other: refused});
  await new Promise(done => { document.addEventListener('key', done, {once: true}); setTimeout(done, 300); });
}

// --- asking ---

const trouble = make('p.card.warn', {hidden: '', id: 'trouble', role: 'status'});
function tell(text) { trouble.textContent = text; trouble.hidden = !text; }

// The server's answer, or 401 in its place where no key is to be had.
async function call(path, values) {
  if (!key) await keyOfOtherTab();
  if (!key) return new Response('', {status: 401});
  const shown = key, answer = await fetch(path + '?' + new URLSearchParams(values || {}), {cache: 'no-store', headers: {Authorization: 'Bearer ' + shown}});
  if (answer.status === 401 && key === shown) {
    refused = key;
    key = '';
    kept.removeItem('key');
  }
  return answer;
}
// What it says; undefined, with a word on the page, where there is nothing.
async function ask(path, values) {
  let answer;
  try {
    answer = await call(path, values);
  } catch {
    tell('The dashboard does not answer: it was ended, or the connection is gone. This page goes on when it is back.');
    return;
  }
  if (answer.status === 401) return void tell('This dashboard does not know the key of this page: it was started again since and has another one, or the address was not copied whole. Open the whole address that it printed.');
  const data = await answer.json().catch(() => ({error: 'the answer cannot be read'}));
  if (!answer.ok) return void tell(data.error || 'error ' + answer.status);
  tell('');
  return data;
}
// Calls work() now and, seconds after it was done, again; it may return other seconds. Not while nobody looks.
function again(seconds, work) {
  let timer = 0, busy = false;
  const turn = async () => {
    if (busy || document.hidden) return;
    busy = true;
    clearTimeout(timer);
    let pause = seconds;
    try { pause = await work() ?? seconds; } finally { busy = false; timer = setTimeout(turn, 1000 * pause); }
  };
  document.addEventListener('visibilitychange', turn);
  turn();
}

// --- a run whose curves grow ---

class LiveRun extends Run {
  constructor(name) {
    super({folder: name, facts: {}, values: {}, metrics: {}, steps: [], clock: [], problems: [], peak_bytes: {}, seconds: {}, drops: {}});
    Object.assign(this, {cursor: '', seen: '', own: new Map()});
  }
  // What is new; of a long run that is met for the first time a part, and `more` of it at once.
  async ask() {
    const data = await ask('/api/run', {run: this.folder, cursor: this.cursor, seen: this.seen});
    if (!data) return;
    const {curves, ...rest} = data;
    this.grow(curves);
    this.take({...rest, state: data.brief.state, folder: this.folder, steps: this.steps, stepsOfSamples: data.steps});
    return data;
  }
  grow(curves) {
    if (curves.whole) { this.metrics = {}; this.steps = []; this.clock = []; }
    this.cursor = curves.cursor;
    this.clock.length = Math.min(this.clock.length, curves.clock.from);
    curves.clock.x.forEach((x, i) => this.clock.push([x, curves.clock.y[i]]));
    for (const [name, fresh] of Object.entries(curves.metrics)) {
      const m = this.metrics[name] ??= {x: this.steps.push([]) - 1, y: []}, x = this.steps[m.x];
      x.length = m.y.length = Math.min(m.y.length, fresh.from);
      x.push(...fresh.x); m.y.push(...fresh.y);
      m.max = fresh.max;
      m.median = [...m.y].sort((a, b) => a - b)[m.y.length >> 1];
    }
  }
}

// --- the list ---

const listOf = (...runs) => '/?' + new URLSearchParams({compare: runs.join('/')});
function ago(started) {
  const t = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(started || '');
  if (!t) return '';
  const s = (Date.now() - Date.UTC(t[1], t[2] - 1, t[3], t[4], t[5], t[6])) / 1000;
  return s < 90 ? Math.max(0, Math.round(s)) + ' s ago' : s < 5400 ? Math.round(s / 60) + ' min ago' : s < 129600 ? Math.round(s / 3600) + ' h ago' : Math.round(s / 86400) + ' days ago';
}
// Of the newest step of the run; where it is of an earlier one, that is said.
function figureText(f, first, step) {
  if (!f) return null;
  const old = step !== undefined && f.step !== undefined && (f.step === 0 || f.step !== step);
  const percent = f.metric.endsWith('accuracy'), show = v => number(v, percent), word = {'critic/score/mean': 'reward', 'eval/return/mean': 'return', 'eval/reward/mean': 'reward'}[f.metric] || f.metric.split('/').pop();
  return make('span', make('span.faint', word + ' '), first && f.first !== f.last && f.step !== 0 ? show(f.first) + ' → ' : '', make('b', show(f.last)), old ? make('span.faint', ' at step ' + number(f.step)) : null, f.best !== f.last ? make('span.faint.whole', ' best ' + show(f.best)) : null);
}
// Why it ended, or the last warning; that all steps are done its state says.
const wordOf = run => run.state === 'finished' && !run.begins ? '' : run.last_line;
function runRow(run, chosen, changed) {
  const tick = make('input', {type: 'checkbox', 'aria-label': 'compare ' + run.run, onchange: () => { if (tick.checked) chosen.add(run.run); else chosen.delete(run.run); changed(); }});
  tick.checked = chosen.has(run.run);
  const part = (label, ...content) => make('div.part', make('span.label', label), ...content);
  const progress = run.steps > 0 ? make('span.track', make('span.bar', {style: 'width:' + Math.min(100, 100 * run.step / run.steps).toFixed(1) + '%'})) : null;
  const row = make('div.card.run', make('label.pick', tick), make('a.name', run.run, {href: '/?' + new URLSearchParams({run: run.run})}), make('div.part', stateBadge(run.state)),
    part('job', run.job || '–', run.task ? make('span.faint', ' ' + run.task) : null), part('steps', make('b', number(run.step)), run.steps ? ' / ' + number(run.steps) : '', progress),
    part('learned', figureText(run.learned) || make('span.none', '–')), part('held out', figureText(run.held_out, true, run.step) || make('span.none', '–')),
    part('started', ago(run.started) || '–', make('span.faint', ' ' + bytes(run.bytes))), wordOf(run) ? make('div.last', wordOf(run)) : null);
  return row;
}
function listView() {
  const chosen = new Set(), rows = make('div.runs'), where = make('p.sub'), find = make('input', {type: 'search', placeholder: 'part of a name', 'aria-label': 'filter runs'});
  const compare = make('button.plain', {type: 'button', onclick: () => { location.href = listOf(...chosen); }});
  let runs = [], text = '';
  const changed = () => {
    compare.textContent = chosen.size < 2 ? 'tick two runs to compare them' : 'compare ' + chosen.size + ' runs';
    compare.disabled = chosen.size < 2 || chosen.size > 8;
    if (chosen.size > 8) compare.textContent = 'eight runs at most';
  };
  const fill = () => {
    const shown = runs.filter(run => (run.run + ' ' + run.name + ' ' + run.task + ' ' + run.state).includes(find.value.trim()));
    rows.replaceChildren(...(shown.length ? shown.map(run => runRow(run, chosen, changed)) : [make('p.empty', runs.length ? 'None of that name.' : 'No run yet; start one with `tidepool train CONFIG`.')]));
  };
  find.oninput = fill;
  page.append(make('header', make('h1', 'Runs'), find, compare), where, rows);
  changed();
  again(3, async () => {
    const data = await ask('/api/runs');
    if (!data) return;
    document.title = 'Tidepool · ' + data.runs.length + ' runs';
    where.replaceChildren(data.runs.length + (data.runs.length === 1 ? ' run' : ' runs') + ' in ', make('b', data.root));
    // Ages are made here: the list is drawn anew once a minute without news.
    const now = JSON.stringify(data.runs) + Math.floor(Date.now() / 60000);
    if (now === text) return;
    text = now;
    runs = data.runs;
    for (const name of chosen) if (!runs.some(run => run.run === name)) chosen.delete(name);
    changed();
    fill();
  });
}

// --- one run ---

const goesOn = run => ['running', 'warm_start', 'new'].includes(run.state);
const noteOfCurves = runs => (runs.some(goesOn) ? 'live; ' : '') + 'where there are two lines of a colour, the thick one is a moving average';
function liveFigures(run) {
  const live = run.live || {}, list = [];
  if (run.state === 'running' && live.left_s > 0) list.push(['time left', duration(live.left_s), '', 'at the pace of the last steps', '']);
  if (run.state === 'running' && live.still_s > 0) list.push(['no step for', duration(live.still_s), '', 'speed and rates are of the last step', '']);
  if (goesOn(run) && live.phase) list.push(['now', live.phase, '', live.in_flight ? live.in_flight + ' requests under way' : '', '']);
  return list;
}
function runView(name) {
  const run = new LiveRun(name), head = make('header'), about = make('p.sub'), warn = make('p.card.warn', {hidden: ''}), figures = make('div');
  page.append(head, about, warn, figures);
  const cards = curves([run]), every = allMetrics([run]);
  const live = section(page, 'curves', 'Curves', '', make('div.caption', axisSwitch()), cards, every);
  const slots = make('div', make('p.empty', 'Not read yet.'));
  section(page, 'pool', 'The pool', 'slots over time, from the journal', slots);
  const {box, show: showSamples} = samplesOf(run);
  section(page, 'samples', 'Samples', '', box);
  section(page, 'logs', 'Logs', '', logsOf(run));
  const tables = make('div.grid2.loose'), config = make('div');
  section(page, 'more', 'Drops, faults, time and memory', '', tables);
  section(page, 'config', 'Config', '', config);
  let seen = '', faults = {};
  const showTables = () => {
    const list = [barTable('Samples dropped, by reason', run.drops, number), barTable('Faults', faults, number),
                  barTable('Time by phase, since the last start', run.seconds, duration), barTable('Peak memory by process', memoryOf(run), bytes)].filter(Boolean);
    tables.replaceChildren(...(list.length ? list : [make('p.empty', 'Nothing yet.')]));
  };
  again(1.5, async () => {
    const data = await run.ask();
    if (!data) return 4;
    document.title = run.folder + ' · Tidepool';
    head.replaceChildren(make('h1', run.folder), stateBadge(run.state, run.exit_code), make('a.plain', 'compare with …', {href: '/'}));
    about.replaceChildren(...facts(run).childNodes);
    const words = [wordOf(run.brief), ...(run.state === 'running' ? data.waits || [] : []), (run.lost || []).join('\n'), (run.problems || []).join('\n'), data.curves.bad ? data.curves.bad + ' lines of metrics.jsonl cannot be read' : ''].filter(Boolean);
    warn.hidden = !words.length;
    warn.textContent = words.join('\n');
    figures.replaceChildren(tiles([...liveFigures(run), ...figuresOf(run)]) || '');
    live.textContent = noteOfCurves([run]);
    cards.update([run]);
    every.update();
    if (run.seen !== seen) {
      seen = run.seen;
      const open = config.firstChild && config.firstChild.open;
      config.replaceChildren(configText(run.config || ''));
      config.firstChild.open = !!open;
    }
    showTables();
    showSamples();
    return data.more ? 0.02 : goesOn(run) ? 1.5 : 8;
  });
  let paints = [];
  again(5, async () => {
    if (slots.firstChild.zoomed && slots.firstChild.zoomed()) return;  // somebody looks closer
    const data = await call('/api/pool', {run: name}).then(a => a.ok ? a.json() : null, () => null);
    if (!data) return 3;
    faults = data.faults;
    showTables();
    for (const f of paints) repaint.splice(repaint.indexOf(f), 1);
    const before = repaint.length, card = pool(data);
    slots.replaceChildren(card || make('p.empty', data.problem || (data.spans.length ? 'One slot that never moves says nothing.' : 'No slot has worked yet.')));
    paints = repaint.slice(before);
    paints.forEach(f => f());
    return run.state && !goesOn(run) ? 30 : 5;
  });
}
function memoryOf(run) {
  if (Object.keys(run.peak_bytes || {}).length) return run.peak_bytes;
  return Object.fromEntries(((run.live || {}).workers || []).filter(w => w.peak_bytes > 0).map(w => [w.name || 'place ' + w.place, w.peak_bytes]));
}

// Of the newest step that has some, or of the chosen one.
function samplesOf(run) {
  const choice = make('select', {'aria-label': 'step'}), cards = make('div.samples', make('p.empty', 'reading ...'));
  let offered = '', shown, asked;
  const show = async () => {
    if (!run.stepsOfSamples) return;  // the run is not read yet
    const steps = run.stepsOfSamples, now = steps.join();
    if (now !== offered) {
      const chosen = choice.value;
      offered = now;
      choice.replaceChildren(make('option', 'newest', {value: ''}), ...[...steps].reverse().map(step => make('option', String(step), {value: step})));
      choice.value = steps.includes(+chosen) && chosen !== '' ? chosen : '';
    }
    if (!steps.length) cards.replaceChildren(make('p.empty', goesOn(run) ? 'None yet.' : 'None.'));
    const step = choice.value === '' ? steps[steps.length - 1] : +choice.value;
    if (step === undefined || step === shown || step === asked) return;
    asked = step;
    const rows = await ask('/api/samples', {run: run.folder, step});
    if (asked !== step) return;  // another one was chosen meanwhile
    asked = undefined;
    if (!rows) return;
    shown = step;
    const best = Math.max(0, ...rows.map(r => r.reward));
    cards.replaceChildren(...rows.map(r => sampleCard(r, best)));
  };
  choice.onchange = show;
  return {box: make('div', make('div.bar-of-steps', 'of step', choice), cards), show};
}

// The end of a log, and what comes.
function logsOf(run) {
  const choice = make('select', {'aria-label': 'log'}), text = make('pre.log', {tabindex: '0'}), box = make('details', make('summary', 'Logs'), make('div.bar-of-steps', choice), text);
  const most = 400000;
  let to, name = '', offered = '';
  const read = async () => {
    if (!box.open || !choice.value) return;
    if (choice.value !== name) { name = choice.value; to = undefined; text.textContent = ''; }
    const part = await ask('/api/log', {run: run.folder, name, ...(to === undefined ? {} : {from: to})});
    if (!part) return;
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    if (to !== undefined && part.from !== to) text.textContent = '';  // it began anew
    if (part.text) text.append(part.text);
    if (text.textContent.length > most) text.textContent = text.textContent.slice(-most / 2);
    to = part.to;
    if (atEnd) text.scrollTop = text.scrollHeight;
    return part.to < part.bytes ? 0.05 : undefined;
  };
  const turn = async () => {
    if (!box.open) return 1;
    const logs = await ask('/api/logs', {run: run.folder});
    if (logs && logs.map(l => l.name).join('/') !== offered) {
      const chosen = choice.value;
      offered = logs.map(l => l.name).join('/');
      choice.replaceChildren(...logs.map(l => make('option', l.name + (l.bytes ? '' : ' (empty)'), {value: l.name})));
      if (logs.some(l => l.name === chosen)) choice.value = chosen;
      else choice.value = (logs.find(l => l.name.startsWith('controller')) || logs[0] || {}).name || '';
    }
    return await read() ?? (goesOn(run) ? 2 : 10);
  };
  choice.onchange = box.ontoggle = turn;
  again(2, turn);
  return box;
}

// --- several ---

function compareView(names) {
  const runs = names.map(name => new LiveRun(name)), title = make('h1', names.length + ' runs compared'), states = make('div.card.top'), config = make('div.card'), last = make('div.card');
  nameRuns(runs, names);
  page.append(make('header', title), states);
  section(page, 'config', 'What differs', 'keys of the configs; those with equal values are left out', config);
  section(page, 'last', 'Figures', 'last value of each, and the best one where it is known which way is better', last);
  const cards = curves(runs), every = allMetrics(runs);
  const live = section(page, 'curves', 'Curves', '', make('div.caption', axisSwitch()), cards, every);
  const follow = () => again(2, async () => {
    const data = await Promise.all(runs.map(run => run.ask()));
    if (data.some(d => !d)) return 4;
    states.replaceChildren(besideTable(runs, '', [
      ['folder', runs.map(run => make('a', run.folder, {href: '/?' + new URLSearchParams({run: run.folder})}))],
      ['state', runs.map(run => stateBadge(run.state, run.exit_code))], ['job', runs.map(run => run.facts.job || '–')],
      ['steps', runs.map(run => number(run.brief.step) + (run.brief.steps ? ' / ' + number(run.brief.steps) : ''))],
      ['time', runs.map(run => run.clock.length ? duration(run.clock[run.clock.length - 1][1]) : '–')]], {id: 'runs'}));
    live.textContent = noteOfCurves(runs);
    cards.update(runs);
    every.update();
    return data.some(d => d.more) ? 0.02 : runs.some(goesOn) ? 2 : 10;
  });
  let followed = false;
  again(4, async () => {
    const data = await ask('/api/compare', {runs: names.join('/')});
    if (!data) return;
    nameRuns(runs, data.labels);
    if (!followed) { followed = true; follow(); }
    document.title = data.labels.join(', ') + ' · Tidepool';
    config.replaceChildren(differences(runs, data.config) || make('p.empty', 'Nothing: the configs are equal.'));
    last.replaceChildren(data.more ? make('p.empty', 'reading ...') : figures(runs, data.metrics) || make('p.empty', 'No metric is shared.'));
    if (data.more) return 0.1;
    return runs.every(run => run.state && !goesOn(run)) ? 15 : 4;
  });
}

// --- which one ---

nav.append(make('a.home', 'Tidepool', {href: '/'}), theme);
page.replaceChildren(trouble);
function view() {
  const asked = new URLSearchParams(location.search);
  if (asked.get('run')) runView(asked.get('run'));
  else if (asked.get('compare')) compareView([...new Set(asked.get('compare').split('/'))]);
  else listView();
}
// Without a key nothing can be shown but how to get one.
function how() {
  document.title = 'Tidepool · no key';
  const card = make('div.card', {id: 'how'}, make('h1', 'This tab has no key'), make('p', 'Open the whole address that `tidepool dashboard` printed when it was started: it ends in #key= and a key, another one at each start.'),
                    make('p', 'Or leave this tab open: it goes on as soon as another tab of this browser shows the dashboard at the same address.'));
  page.append(card);
  document.addEventListener('key', () => { card.remove(); view(); }, {once: true});
}
async function begin() {
  keyOfAddress();
  if (!key) await keyOfOtherTab();
  if (key) view(); else how();
}
begin();
