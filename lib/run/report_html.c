/* SPDX-License-Identifier: Apache-2.0 */
/* Text as HTML, and the page's style and script. */
#include <string.h>

#include "lib/run/report_parts.h"

static const char *entity_of(uint32_t c) {
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

/* Characters that neither HTML nor XML takes as text. */
static bool is_forbidden(uint32_t c) {
    return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || (c >= 0x7F && c < 0xA0) || (c & 0xFFFE) == 0xFFFE;
}

void html_text_n(Str *out, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t c = 0;
        size_t used = utf8_decode(text + at, len - at, &c);
        const char *entity = used ? entity_of(c) : NULL;
        if (entity)
            str_append(out, entity);
        else if (used == 0 || is_forbidden(c))
            str_append(out, "\xEF\xBF\xBD");
        else
            str_append_n(out, text + at, used);
        at += MAX(used, (size_t)1);
    }
}

void html_text(Str *out, const char *text) { html_text_n(out, text, strlen(text)); }

void html_element(Str *out, const char *tag, const char *text) {
    str_printf(out, "<%s>", tag);
    html_text(out, text);
    str_printf(out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

/* Colours that are distinguishable with any colour vision (after Okabe and Ito), darker on white, lighter on black. */
const char report_style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c1e21;--soft:#5d646d;--line:#e2e4e8;--grid:#eceef1;--mark:#d6e9f8;--mark-line:#0072b2;--special:#eee5f7;--warn:#fff4d9;"
    "--warn-line:#c98a00;--good:#00795a;--bad:#b3261e;--c0:#0072b2;--c1:#d55e00;--c2:#00845f;--c3:#aa4499;--c4:#b57f00;--c5:#3a9ad9;--c6:#882255;--c7:#6b6b6b}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#131518;--card:#1b1e23;--ink:#e6e8eb;--soft:#a0a8b2;--line:#31363d;--grid:#282c32;--mark:#12405f;--mark-line:#56b4e9;--special:#3b2d50;"
    "--warn:#372c11;--warn-line:#e0a92e;--good:#45c79c;--bad:#ff8a80;--c0:#56b4e9;--c1:#ff8c4d;--c2:#3fcf9f;--c3:#e08fd3;--c4:#f0c74f;--c5:#9cc9ff;--c6:#e67ba0;--c7:#b4b4b4}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}\n"
    "h1{font-size:27px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:40px 0 12px}h3{font-size:15px;margin:20px 0 6px}\n"
    "code,pre,.tokens,.text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;font-size:13px}\n"
    ".soft,figcaption span,.path{color:var(--soft)}.path{margin:0 0 12px;overflow-wrap:anywhere}\n"
    ".command{display:block;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;overflow-wrap:anywhere;white-space:pre-wrap}\n"
    ".state{display:inline-block;font-size:13px;border:1px solid currentColor;border-radius:99px;padding:1px 10px;margin-left:10px;vertical-align:middle;font-weight:500;white-space:nowrap}\n"
    ".done{color:var(--good)}.open{color:var(--warn-line)}.dead{color:var(--bad)}\n"
    ".died{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--bad);border-radius:6px;padding:10px 16px;margin:20px 0 0}.died p{margin:4px 0;"
    "overflow-wrap:anywhere}.died h3{margin:12px 0 4px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(145px,1fr));gap:12px;margin:20px 0 0}\n"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}.tile span{display:block;color:var(--soft);font-size:13px}\n"
    ".tile b{display:block;font-size:22px;line-height:1.35;font-weight:600;font-variant-numeric:tabular-nums}\n"
    ".warnings{background:var(--warn);border-left:4px solid var(--warn-line);border-radius:6px;padding:10px 16px;margin:20px 0 0}.warnings ul{margin:4px 0;padding-left:20px}.warnings li{"
    "overflow-wrap:anywhere}\n"
    ".charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}.wide{grid-column:1/-1}\n"
    ".chart{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px 12px;display:flex;flex-direction:column}\n"
    "figcaption{font-size:14px;margin:0 0 2px}.legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;overflow-wrap:anywhere}\n"
    ".key{display:inline-block;width:20px;height:0;border-top:3px solid;margin-right:7px;vertical-align:middle;border-radius:2px}\n"
    ".plot{position:relative;flex:1 0 220px;margin-top:8px}.wide .plot{flex-basis:320px}\n"
    ".area{position:absolute;left:50px;right:12px;top:8px;bottom:26px}.area svg{width:100%;height:100%;display:block;overflow:visible;clip-path:inset(-1px -6px -5px)}\n"
    ".ys{position:absolute;left:0;width:44px;top:8px;bottom:26px}.ys span,.xs span{position:absolute;font-size:12px;line-height:16px;color:var(--soft);font-variant-numeric:tabular-nums;"
    "white-space:nowrap}\n"
    ".ys span{right:0;transform:translateY(50%)}.xs{position:absolute;left:50px;right:12px;bottom:0;height:20px}.xs span{transform:translateX(-50%)}\n"
    ".grid{stroke:var(--grid);stroke-width:1px;fill:none;vector-effect:non-scaling-stroke}\n"
    ".l{fill:none;stroke:currentColor;stroke-width:2px;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}.raw{stroke-width:1px;opacity:.35}\n"
    ".dots{fill:none;stroke:currentColor;stroke-width:7px;stroke-linecap:round;vector-effect:non-scaling-stroke}\n"
    ".c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}\n"
    ".c4.l,.c5.l,.c6.l,.c7.l{stroke-dasharray:7 4}.raw.l{stroke-dasharray:none}\n"
    ".cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);pointer-events:none}\n"
    ".tip{position:absolute;z-index:2;background:var(--card);color:var(--ink);border:1px solid var(--line);border-radius:6px;padding:5px 9px;font-size:12px;line-height:1.45;pointer-events:none;"
    "white-space:nowrap;box-shadow:0 2px 10px rgba(0,0,0,.18);font-variant-numeric:tabular-nums}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;background:var(--card);border:1px solid var(--line);width:100%}\n"
    "th,td{text-align:left;padding:6px 12px;border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600;font-size:13px;color:var(--soft)}td.n,th.n{text-align:right;white-space:nowrap}\n"
    "td{overflow-wrap:anywhere}td.k{white-space:nowrap;overflow-wrap:normal}tr:last-child td{border-bottom:0}td small{display:block;color:var(--soft);font-size:13px;white-space:normal}\n"
    ".columns{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px;align-items:start}\n"
    ".bar{display:flex;height:14px;border-radius:7px;overflow:hidden;background:var(--grid);margin:4px 0 8px}.bar i{display:block;background:currentColor;border-right:1px solid var(--card)}\n"
    ".tokens,.text{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.75}\n"
    ".tokens i{font-style:normal;color:var(--soft);border-radius:3px;padding:1px 0;box-shadow:inset -1px 0 0 var(--line)}\n"
    ".tokens .on{color:var(--ink);background:var(--mark);border-bottom:2px solid var(--mark-line)}.tokens .sp{font-weight:700;outline:1px dashed var(--soft);outline-offset:-1px}\n"
    ".legend .tokens{display:inline;border:0;padding:0;background:none}\n"
    ".text+.text{margin-top:6px}.answer{border-left:4px solid var(--c2)}.best{border-left-color:var(--good)}.worst{border-left-color:var(--warn-line)}\n"
    ".card{background:var(--bg);border:1px solid var(--line);border-radius:10px;padding:4px 14px 14px;margin:14px 0}.card h3{margin-top:10px}.card details .text{margin-top:6px}\n"
    ".badge{color:var(--soft);font:600 12px/1.6 system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif;white-space:normal}.best .badge{color:var(--good)}.worst .badge{color:var(--warn-line)}\n"
    "details{margin:12px 0 0}summary{cursor:pointer;color:var(--soft);padding:4px 0}pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;overflow:auto;"
    "max-height:420px;margin:8px 0 0}\n"
    "footer{margin-top:44px;color:var(--soft);font-size:13px}\n"
    "@media(max-width:720px){.charts,.columns{grid-template-columns:minmax(0,1fr)}main{padding:18px 12px 40px}h1{font-size:22px}.wide .plot{flex-basis:220px}.chart{padding:12px 10px 10px}"
    ".tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.tile b{font-size:18px}th,td{padding:5px 8px}.state{margin-left:0}td.k{white-space:normal;overflow-wrap:anywhere}}\n"
    ".results td,.results th,.differences td.k{white-space:nowrap;overflow-wrap:normal}.differences td,.differences th{min-width:76px}\n"
    "@media(max-width:480px){.xs .odd{display:none}}\n"
    "@media print{body{background:#fff}.chart,.tile{break-inside:avoid}}\n";

/* Optional: shows values under the pointer, read from the drawing. It contains no '<' or '&', so that the page is also XML. */
const char report_script[] =
    "document.querySelectorAll('.chart').forEach(function(chart){\n"
    "  var area=chart.querySelector('.area'),d=chart.dataset,x0=+d.x0,x1=+d.x1,y0=+d.y0,y1=+d.y1,tip=null,cursor=null;\n"
    "  var lines=Array.from(chart.querySelectorAll('g')).map(function(g){\n"
    "    var path=Array.from(g.querySelectorAll('.l')).pop();\n"
    "    return{name:g.dataset.name,colour:getComputedStyle(path).color,points:path.getAttribute('d').split(/[M ]/).filter(Boolean).map(function(p){return p.split(',').map(Number)})}}).filter(function(line){return line.points.length});\n"
    "  function number(v){var a=Math.abs(v);return a===0?'0':0.001>a?v.toExponential(2):a>=1000?v.toFixed(0):v.toPrecision(4)}\n"
    "  function leave(){if(tip){tip.remove();cursor.remove();tip=cursor=null}}\n"
    "  if(!lines.length)return;\n"
    "  function move(e){\n"
    "    var box=area.getBoundingClientRect(),at=(e.clientX-box.left)/box.width*1000;\n"
    "    if(!tip){tip=document.createElement('div');tip.className='tip';cursor=document.createElement('div');cursor.className='cursor';area.append(cursor,tip)}\n"
    "    tip.textContent='';var x=null;\n"
    "    lines.forEach(function(line){\n"
    "      var best=line.points.reduce(function(a,b){return Math.abs(a[0]-at)>Math.abs(b[0]-at)?b:a});\n"
    "      if(x===null)x=best[0];\n"
    "      var row=document.createElement('div'),name=document.createElement('span');\n"
    "      name.textContent=line.name?line.name+' ':'';name.style.color=line.colour;row.append(name,number(y1-best[1]/1000*(y1-y0)));\n"
    "      tip.append(row)});\n"
    "    var head=document.createElement('div');head.textContent='step '+Math.round(x0+x/1000*(x1-x0));tip.prepend(head);\n"
    "    cursor.style.left=x/10+'%';tip.style.top='4px';\n"
    "    var left=x/1000*box.width+10;if(left+tip.offsetWidth>box.width)left=Math.max(0,left-20-tip.offsetWidth);tip.style.left=left+'px'}\n"
    "  area.addEventListener('pointermove',move);area.addEventListener('pointerdown',move);area.addEventListener('pointerleave',leave)});\n";
