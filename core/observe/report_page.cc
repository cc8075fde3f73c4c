#include "core/observe/report_page.h"

namespace tidepool::observe {

std::string_view ReportStyle() {
  return R"css(
:root{--ink:#17202e;--soft:#5b6778;--faint:#8a95a5;--line:#e4e8ee;--bg:#f5f7fa;--card:#fff;--blue:#2f6fed;--green:#13a071;--amber:#c77d00;--red:#d43d51}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1200px;margin:0 auto;padding:28px 22px 60px}
header{display:flex;flex-wrap:wrap;align-items:center;gap:8px 14px;margin-bottom:4px}
h1{font-size:26px;line-height:1.2;margin:0;letter-spacing:-.01em}
h2{font-size:17px;margin:36px 0 12px;letter-spacing:-.005em}
h2 small{font-size:13px;font-weight:400;color:var(--faint);margin-left:6px;letter-spacing:0}
h3{font-size:14px;margin:0;font-weight:650}
.sub{color:var(--soft);margin:0 0 20px;font-size:14px}
.sub b{font-weight:600;color:var(--ink)}
.badge{font-size:12.5px;font-weight:650;padding:3px 10px;border-radius:99px;white-space:nowrap}
.ok{background:#dcf5eb;color:#0a6b4b}.bad{background:#fde3e6;color:#a3202f}.live{background:#e2ecfe;color:#1e4fb8}.mid{background:#fdf0d9;color:#8a5700}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(46%,235px),1fr));gap:12px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:13px 16px 12px}
.tile .k{color:var(--soft);font-size:12.5px}
.tile .v{font-size:23px;font-weight:650;letter-spacing:-.015em;line-height:1.3;white-space:nowrap}
.tile .v small{font-size:14px;font-weight:500;color:var(--faint)}
.tile .v .arrow{color:var(--faint);font-weight:400;margin:0 2px}
.tile .d{color:var(--faint);font-size:12px}
.tile.good .v{color:#0a7d57}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px;margin:0;min-width:0}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 14px;margin-bottom:6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 13px;font-size:12.5px;color:var(--soft)}
.legend b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px;vertical-align:-1px}
svg{display:block;width:100%;height:auto;overflow:visible}
.grid{stroke:#edf0f4;stroke-width:1}.axis{stroke:#c9d1db;stroke-width:1}
.tick{fill:var(--faint);font-size:11.5px;font-variant-numeric:tabular-nums}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.faint{stroke-width:1.2;opacity:.32}
.note{margin:4px 0 0;color:var(--faint);font-size:12.5px}
.scroll{overflow-x:auto}
.timeline{min-width:760px}
.timeline .lane{fill:#f3f5f8}.timeline .label{fill:var(--soft);font-size:11.5px}.timeline .mark{stroke:#17202e;stroke-width:.8;opacity:.28;stroke-dasharray:3 3}
.timeline .grid{stroke:#e7ebf0}
.caption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 16px;color:var(--soft);font-size:13px;margin:2px 0 8px}
.caption+.scroll+.caption{margin-top:16px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{font-weight:600;text-align:left;color:var(--soft);font-size:12.5px}
td,th{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}
td.n{text-align:right;font-variant-numeric:tabular-nums;padding-right:0;white-space:nowrap}
.bar{display:block;height:6px;border-radius:3px;background:var(--blue);margin-top:8px;min-width:2px}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px;margin-bottom:6px}
.sample{border-left:4px solid var(--line)}
.sample.hit{border-left-color:var(--green)}.sample.miss{border-left-color:var(--red)}.sample.part{border-left-color:#f0a020}
.sample .meta{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 10px;color:var(--faint);font-size:12px;margin-top:8px}
.who{font-size:11.5px;color:var(--faint);margin:0 0 1px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:12.8px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
.sample pre{max-height:11em;overflow:auto;margin-bottom:7px}
.sample pre.answer{background:#f5f7fa;border-radius:7px;padding:6px 9px}
.steps{color:var(--soft);font-size:13px;margin:12px 0 8px;font-weight:600}
details{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}
details+details{margin-top:10px}
summary{cursor:pointer;font-weight:600;font-size:14px}
details pre{margin-top:10px;overflow-x:auto;white-space:pre}
pre .c{color:var(--faint)}pre .o{color:#b45309;font-weight:600}
.empty{color:var(--faint);font-size:14px;margin:0}
.warn{background:#fff8ea;border-color:#f3dfb5;color:#7a4f00;font-size:13.5px}
#tip{position:fixed;pointer-events:none;background:#17202eee;color:#fff;border-radius:8px;padding:6px 10px;font-size:12.5px;line-height:1.45;display:none;z-index:9;max-width:280px}
#tip i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px}
#tip b{font-weight:600;font-variant-numeric:tabular-nums}
footer{margin-top:40px;color:var(--faint);font-size:12.5px}
@media (max-width:560px){main{padding:18px 12px 40px}h1{font-size:22px}.tile .v{font-size:20px}}
@media print{body{background:#fff}.card,.tile,details{break-inside:avoid}}
)css";
}

std::string_view ReportScript() {
  return R"js(
(function(){
var tip=document.createElement('div');tip.id='tip';document.body.appendChild(tip);
function text(v,percent){
 if(percent)return (100*v).toFixed(1)+'%';
 var a=Math.abs(v);
 if(a>=1e6)return (v/1e6).toPrecision(4)+'M';
 if(a>=1000)return Math.round(v).toLocaleString('en-US');
 return a===0?'0':String(+v.toPrecision(4));
}
function nearest(points,x){
 var lo=0,hi=points.length-1;
 while(hi-lo>1){var m=(lo+hi)>>1;if(points[m][0]<x)lo=m;else hi=m;}
 return Math.abs(points[lo][0]-x)<=Math.abs(points[hi][0]-x)?points[lo]:points[hi];
}
document.querySelectorAll('svg[data-chart]').forEach(function(svg){
 var d=JSON.parse(svg.getAttribute('data-chart')),b=d.box;
 var line=document.createElementNS('http://www.w3.org/2000/svg','line');
 line.setAttribute('stroke','#8a95a5');line.setAttribute('stroke-dasharray','3 3');
 line.setAttribute('y1',b[1]);line.setAttribute('y2',b[3]);line.style.display='none';svg.appendChild(line);
 function hide(){tip.style.display='none';line.style.display='none';}
 svg.addEventListener('pointerleave',hide);
 svg.addEventListener('pointermove',function(e){
  var r=svg.getBoundingClientRect(),scale=r.width/svg.viewBox.baseVal.width;
  var at=(e.clientX-r.left)/scale;
  if(at<b[0]-6||at>b[2]+6){hide();return;}
  var x=d.x[0]+(at-b[0])/(b[2]-b[0])*(d.x[1]-d.x[0]),best=null;
  d.series.forEach(function(s){var p=nearest(s.points,x);if(best===null||Math.abs(p[0]-x)<Math.abs(best-x))best=p[0];});
  tip.textContent='';
  var head=document.createElement('div');head.textContent='step '+Math.round(best);tip.appendChild(head);
  d.series.forEach(function(s){
   var p=nearest(s.points,best);if(Math.abs(p[0]-best)>(d.x[1]-d.x[0])/60)return;
   var row=document.createElement('div'),i=document.createElement('i'),v=document.createElement('b');
   i.style.background=s.color;v.textContent=text(p[1],d.percent);
   row.appendChild(i);row.appendChild(document.createTextNode(s.name+' '));row.appendChild(v);tip.appendChild(row);
  });
  var px=b[0]+(best-d.x[0])/(d.x[1]-d.x[0])*(b[2]-b[0]);
  line.setAttribute('x1',px);line.setAttribute('x2',px);line.style.display='';
  tip.style.display='block';
  var w=tip.offsetWidth,left=e.clientX+14;
  if(left+w>innerWidth-8)left=e.clientX-w-14;
  tip.style.left=Math.max(4,left)+'px';tip.style.top=Math.max(4,e.clientY-tip.offsetHeight-10)+'px';
 });
});
})();
)js";
}

}  // namespace tidepool::observe
