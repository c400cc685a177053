/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, in Prometheus' text form 0.0.4. */
#include <string.h>

#include "lib/base/system.h"
#include "lib/infer/kv_cache.h"
#include "lib/serve/serve_parts.h"

static const int codes[N_CODES] = {200, 204, 400, 401, 403, 404, 405, 413, 429, 499, 500, 503};
/* Upper bounds in seconds: those of vLLM for the time to the first token, and some below and above, so that one table serves all histograms. */
static const double bounds[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 480};

void histogram_add(Histogram *histogram, double seconds) {
    size_t i = 0;
    while (i < COUNT_OF(bounds) && seconds > bounds[i]) i++;
    histogram->counts[i]++;
    histogram->n++;
    histogram->sum += seconds;
}

static size_t code_at(int status) {
    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i] == status) return i;
    return N_CODES - 1;
}

void count_request(Server *server, const Exchange *x) {
    size_t route = x->route ? (size_t)(x->route - serve_routes) : n_serve_routes;
    server->counters.requests[route][code_at(x->status ? x->status : 499)]++;
}

/* ---- the page ---- */

static void metric(Str *page, const char *name, const char *kind, const char *help, double value) {
    str_printf(page, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, kind, name);
    str_append_double(page, value);
    str_append_char(page, '\n');
}

static void write_requests(Str *page, const Counters *counters) {
    str_append(page, "# HELP tune_requests_total requests, by path and status\n# TYPE tune_requests_total counter\n");
    for (size_t r = 0; r <= n_serve_routes; r++)
        for (size_t c = 0; c < N_CODES; c++)
            if (counters->requests[r][c] > 0)
                str_printf(page, "tune_requests_total{path=\"%s\",code=\"%d\"} %llu\n", r < n_serve_routes ? serve_routes[r].path : "other", codes[c],
                           (unsigned long long)counters->requests[r][c]);
}

static void write_histogram(Str *page, const char *name, const char *help, const Histogram *histogram) {
    uint64_t below = 0;
    str_printf(page, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (size_t i = 0; i < COUNT_OF(bounds); i++) {
        below += histogram->counts[i];
        str_printf(page, "%s_bucket{le=\"%s\"} %llu\n", name, NUMBER(bounds[i]), (unsigned long long)below);
    }
    str_printf(page, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum ", name, (unsigned long long)histogram->n, name);
    str_append_double(page, histogram->sum);
    str_printf(page, "\n%s_count %llu\n", name, (unsigned long long)histogram->n);
}

/* What of the cache holds something, and what a reservation of each request's whole length in one piece would hold for nothing. */
static void write_cache(Str *page, const Server *server, const GeneratorStats *stats) {
    double bytes = (double)kv_page_bytes(server->config.model), per_token = bytes / KV_PAGE_SIZE;
    metric(page, "tune_kv_bytes_limit", "gauge", "keys and values: all pages", (double)stats->pages * bytes);
    metric(page, "tune_kv_bytes", "gauge", "keys and values: pages that requests use", (double)stats->used * bytes);
    metric(page, "tune_kv_reserved_bytes", "gauge", "keys and values: pages that requests use or will need until their end",
           (double)stats->reserved * bytes);
    metric(page, "tune_kv_kept_bytes", "gauge", "keys and values: pages of earlier requests, free when they are needed", (double)stats->kept * bytes);
    metric(page, "tune_kv_shared_bytes", "gauge", "keys and values: pages that several requests use", (double)stats->shared * bytes);
    metric(page, "tune_kv_lost_bytes", "gauge", "keys and values: places after the last tokens in last pages",
           (double)stats->lost_tokens * per_token);
    metric(page, "tune_kv_contiguous_wasted_bytes", "gauge", "what reserving the whole length of each request in one piece would waste now",
           (double)(stats->longest_tokens - stats->cached_tokens) * per_token);
    metric(page, "tune_prefix_tokens_total", "counter", "tokens of prompts", (double)stats->prompt_tokens);
    metric(page, "tune_prefix_found_tokens_total", "counter", "tokens of prompts that were computed before", (double)stats->found_tokens);
}

void handle_metrics(Exchange *x) {
    Server *server = x->server;
    Str page = {0};
    int64_t n_adapters = 0;
    pthread_mutex_lock(&server->lock);
    Counters counters = server->counters;
    GeneratorStats stats = server->stats;
    int64_t waiting = server->n_waiting, n_jobs = server->n_jobs;
    for (const ServedModel *model = server->models; model; model = model->next) n_adapters += model->adapter && !model->unloaded;
    pthread_mutex_unlock(&server->lock);
    write_requests(&page, &counters);
    metric(&page, "tune_prompt_tokens_total", "counter", "tokens of prompts that got an answer", (double)counters.prompt_tokens);
    metric(&page, "tune_generation_tokens_total", "counter", "tokens of answers", (double)counters.answer_tokens);
    metric(&page, "tune_cancelled_total", "counter", "requests whose client went before the end", (double)counters.cancelled);
    metric(&page, "tune_requests_running", "gauge", "requests in the generator", (double)(n_jobs - waiting));
    metric(&page, "tune_requests_waiting", "gauge", "requests that wait", (double)waiting);
    metric(&page, "tune_sequences_running", "gauge", "answers that are computed", (double)stats.running);
    metric(&page, "tune_adapters_loaded", "gauge", "adapters", (double)n_adapters);
    write_cache(&page, server, &stats);
    metric(&page, "process_resident_memory_bytes", "gauge", "resident memory", (double)memory_resident());
    write_histogram(&page, "tune_time_to_first_token_seconds", "from arrival to the first token", &counters.first_token);
    write_histogram(&page, "tune_time_per_output_token_seconds", "between two tokens of a request with one answer", &counters.per_token);
    write_histogram(&page, "tune_request_seconds", "from arrival to the end of the answer", &counters.whole);
    write_histogram(&page, "tune_queue_seconds", "from arrival to the generator", &counters.queue);
    exchange_answer(x, 200, type_text, &page);
}
