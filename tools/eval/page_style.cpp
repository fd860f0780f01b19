#include "tools/eval/page_style.hpp"

#include "tools/eval/markup.hpp"

namespace kvtier::eval {
namespace {

/// Series colours keep apart under protanopia, deuteranopia and tritanopia (least distance .08 in
/// OKLab) and from the surface (contrast 3.2 light, 4.5 dark); hues are the same in both themes.
constexpr std::string_view colours = R"css(
:root { color-scheme: light dark;
  --surface: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --quiet: #5b6570; --rule: #d9dde2;
  --grid: #e8ebee;
  --c0: #194082; --c1: #d97230; --c2: #38a171; --c3: #6b183a;
  --c4: #6b4a00; --c5: #926bcf; --c6: #0d7b8a; --c7: #a84d50; }
@media screen and (prefers-color-scheme: dark) { :root {
  --surface: #15181c; --panel: #1d2126; --ink: #e6e9ed; --quiet: #9aa5b1; --rule: #363d45;
  --grid: #2a3037;
  --c0: #73b6fa; --c1: #d06b26; --c2: #049a78; --c3: #f973b9;
  --c4: #c0aa10; --c5: #a473ee; --c6: #72fbf3; --c7: #feb3a6; } }
)css";

constexpr std::string_view text_style = R"css(
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--surface); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 19px; line-height: 1.3; margin: 44px 0 4px; }
h3 { font-size: 15px; margin: 20px 0 8px; }
h1, h2, h3, p, dd, figcaption, summary { overflow-wrap: anywhere; }
p { max-width: 76ch; margin: 0 0 12px; }
.note { color: var(--quiet); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 16px 0 0; }
dt { color: var(--quiet); }
dd { margin: 0; font-variant-numeric: tabular-nums; }
.scroll { overflow: auto; border: 1px solid var(--rule); border-radius: 6px; margin: 12px 0; }
.tall { max-height: 85vh; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 13px;
  line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--grid); }
tbody:last-child tr:last-child > * { border-bottom: 0; }
thead th { position: sticky; top: 0; background: var(--panel); color: var(--quiet);
  font-weight: 600; white-space: normal; vertical-align: bottom; border-bottom: 1px solid var(--rule); z-index: 1; }
th.text, td.text { text-align: left; }
th.key { position: sticky; left: 0; background: var(--surface); font-weight: 500;
  min-width: 220px; max-width: 340px; white-space: normal; overflow-wrap: break-word; }
thead th.key { background: var(--panel); font-weight: 600; z-index: 2; }
tr.group th { background: var(--panel); font-weight: 600; text-align: left; }
tr.group span { position: sticky; left: 10px; }
details { border-top: 1px solid var(--rule); padding: 6px 0; }
details:last-of-type { border-bottom: 1px solid var(--rule); }
summary { cursor: pointer; }
)css";

constexpr std::string_view chart_style = R"css(
.charts { display: grid; gap: 16px; margin: 12px 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 540px), 1fr)); }
figure { margin: 0; padding: 12px 14px; border: 1px solid var(--rule); border-radius: 6px;
  min-width: 0; break-inside: avoid; }
figcaption { font-weight: 600; margin-bottom: 6px; }
figure > div { overflow-x: auto; }
svg.chart { display: block; width: 100%; min-width: 540px; max-width: 760px; height: auto; }
.chart text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
.chart text.quiet { fill: var(--quiet); font-size: 11.5px; }
.chart .middle { text-anchor: middle; }
.chart .end { text-anchor: end; }
.chart line { stroke: var(--grid); stroke-width: 1; }
.chart .axis { stroke: var(--quiet); }
.chart .tick, .chart .row { stroke: var(--rule); }
.chart .diagonal { stroke: var(--quiet); stroke-dasharray: 5 4; }
.chart .line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.chart .leader { fill: none; stroke: currentColor; stroke-width: 1; stroke-dasharray: 1 3;
  stroke-linecap: round; }
.chart .whisker { fill: none; stroke: currentColor; stroke-width: 1; opacity: .55; }
.chart .mark { fill: currentColor; stroke: var(--surface); stroke-width: 1; }
.chart .hollow { fill: var(--surface); stroke: currentColor; stroke-width: 1.7; }
.d1 .line { stroke-dasharray: 7 3; } .d2 .line { stroke-dasharray: 2 3; }
.d3 .line { stroke-dasharray: 9 3 2 3; }
.s0 { color: var(--c0); } .s1 { color: var(--c1); } .s2 { color: var(--c2); }
.s3 { color: var(--c3); } .s4 { color: var(--c4); } .s5 { color: var(--c5); }
.s6 { color: var(--c6); } .s7 { color: var(--c7); }
)css";

constexpr std::string_view media_style = R"css(
@media (max-width: 640px) {
  main { padding: 20px 16px 40px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 6px; }
  th.key { position: static; min-width: 150px; }
}
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .scroll, figure > div { overflow: visible; max-height: none; }
  .charts { grid-template-columns: 1fr 1fr; }
  svg.chart { min-width: 0; }
  table { font-size: 6.5pt; } th, td { padding: 2px 4px; }
  thead th, th.key, tr.group span { position: static; }
  th.key { min-width: 0; }
  h2, h3, .note { break-after: avoid; break-inside: avoid; } tr { break-inside: avoid; }
}
)css";

}  // namespace

std::string page_opening(std::string_view title) {
  std::string made =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>";
  made.append(escaped(title)).append("</title>\n<style>");
  made.append(colours).append(text_style).append(chart_style).append(media_style);
  return made + "</style>\n</head>\n<body>\n<main>\n";
}

std::string page_closing() { return "</main>\n</body>\n</html>\n"; }

}  // namespace kvtier::eval
