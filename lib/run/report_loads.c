/* SPDX-License-Identifier: Apache-2.0 */
/* The load of each expert on the page of a run, as its last step had it. */
#include "lib/run/report_parts.h"

void report_loads(const RunRecord *run, Str *html) {
    size_t n = json_array_size(run->loads);
    double most = 1;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) most = MAX(most, json_number_value(json_array_get(run->loads, i)));
    str_append(html,
               "<h2>Load of experts</h2>\n<p class=\"soft\">Share of the choices of each expert in the last step, over all layers; 1 is an even "
               "load.</p>\n<div class=\"scroll\"><table>\n");
    for (size_t i = 0; i < n; i++) {
        double load = json_number_value(json_array_get(run->loads, i));
        str_printf(html,
                   "<tr><td class=\"k\">%zu</td><td>%.2f</td><td><svg width=\"240\" height=\"10\"><rect width=\"%.0f\" height=\"10\" "
                   "fill=\"currentColor\" opacity=\".45\"/></svg></td></tr>\n",
                   i, load, 240 * load / most);
    }
    str_append(html, "</table></div>\n");
}
