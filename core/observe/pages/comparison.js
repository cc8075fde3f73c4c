// Runs beside each other (core/observe/comparison.h): what differs between their configs, and their figures.
// Every run has a label and a hue; tables have a column a run.

const runHues = ['blue', 'amber', 'green', 'pink', 'violet', 'teal', 'rust', 'grey'];
function nameRuns(runs, labels) { runs.forEach((run, i) => { run.label = labels[i]; run.hue = runHues[i % runHues.length]; }); }
function runName(run) { return make('span.run-name', make('i', {style: 'background:' + color(run.hue)}), run.label); }

// A long key breaks where its words end.
function breakable(key) { return key.split(/(?<=[._\/])/).flatMap((part, i) => i ? [make('wbr'), part] : [part]); }
// rows: [key, cells]; nothing where there are none.
function besideTable(runs, head, rows, attributes) {
  if (!rows.length) return null;
  return make('div.wide', attributes || {}, make('table.beside', make('tr', make('th', head), runs.map(run => make('th', runName(run)))),
    rows.map(([key, cells]) => make('tr', make('td', make('code', breakable(key))), cells.map(x => make('td', x instanceof Node ? x : String(x)))))));
}
const none = () => make('span.none', '–');
function differences(runs, config) {
  return besideTable(runs, 'key', config.map(k => [k.key, k.runs.map(v => v === null ? none() : v === '' ? make('span.none', 'empty') : v)]), {id: 'differences'});
}
function figures(runs, metrics) {
  const percent = name => /accuracy$|frac_reward|solve_|_ratio$|clip/.test(name);
  const cell = (f, p) => make('span', make('b', number(f.last, p)), f.best !== undefined && f.best !== f.last ? make('span.faint', ' best ' + number(f.best, p)) : null);
  return besideTable(runs, 'metric', metrics.map(m => [m.metric, m.runs.map(f => f === null ? none() : cell(f, percent(m.metric)))]), {id: 'figures'});
}
