/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/rng.h"
#include "lib/base/system.h"
#include "tests/support/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* The error of `got` divided by its tolerance; more than 1 is a failure. */
static double excess(double got, double want, double absolute, double relative) {
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : HUGE_VAL;
    if (got == want) return 0;
    double allowed = absolute + relative * fabs(want);
    double distance = fabs(got - want);
    return allowed > 0 ? distance / allowed : HUGE_VAL;
}

static void check_report(const char *file, int line, const char *what, size_t index, double got, double want, double absolute, double relative) {
    print_error("%s[%zu]: got %.17g, want %.17g, difference %.3g, allowed %.3g + %.3g * |want|\n", what, index, got, want, fabs(got - want), absolute,
                relative);
    _fail(file, line);
}

void check_close_f64_at(const char *file, int line, const char *what, const double *got, const double *want, size_t n, double absolute,
                        double relative) {
    size_t worst = 0;
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double here = excess(got[i], want[i], absolute, relative);
        if (here <= most) continue;
        most = here;
        worst = i;
    }
    if (most > 1) check_report(file, line, what, worst, got[worst], want[worst], absolute, relative);
}

void check_close_f32_at(const char *file, int line, const char *what, const float *got, const float *want, size_t n, double absolute,
                        double relative) {
    size_t worst = 0;
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double here = excess((double)got[i], (double)want[i], absolute, relative);
        if (here <= most) continue;
        most = here;
        worst = i;
    }
    if (most > 1) check_report(file, line, what, worst, (double)got[worst], (double)want[worst], absolute, relative);
}

void check_near_at(const char *file, int line, const char *what, double got, double want, double tolerance) {
    if (excess(got, want, tolerance, 0) > 1) check_report(file, line, what, 0, got, want, tolerance, 0);
}

void check_ids_at(const char *file, int line, const char *what, const int32_t *got, size_t n_got, const int32_t *want, size_t n_want) {
    size_t i = 0;
    while (i < n_got && i < n_want && got[i] == want[i]) i++;
    if (i == n_got && i == n_want) return;
    print_error("%s: %zu ids, wanted %zu; they differ from index %zu on:", what, n_got, n_want, i);
    if (i < n_got) print_error(" got %ld", (long)got[i]);
    if (i < n_want) print_error(" want %ld", (long)want[i]);
    print_error("\n");
    _fail(file, line);
}

void check_status_at(const char *file, int line, const char *call, Status got, Status wanted) {
    if (got == wanted) return;
    print_error("%s: got '%s', want '%s'%s%s\n", call, status_meaning(got), status_meaning(wanted), got == ST_OK ? "" : ": ",
                got == ST_OK ? "" : status_text());
    _fail(file, line);
}

void check_contains_at(const char *file, int line, const char *text, const char *part) {
    if (strstr(text, part)) return;
    print_error("'%s' is not in '%s'\n", part, text);
    _fail(file, line);
}

bool long_tests(void) { return getenv("TEST_LONG") != NULL; }

void skip_learning_under_sanitizers(void) {
    if (ALL_OR_FEW(false, true) && !long_tests()) skip();
}

bool shared_path(const char *name, char *out, size_t size) {
    snprintf(out, size, "../shared/%s", name);
    if (access(out, R_OK) == 0) return true;
    print_message("skipped: '%s' is not here\n", out);
    return false;
}

json_t *golden_open(const char *name) {
    char path[512], within[256];
    json_t *root;
    snprintf(within, sizeof within, "golden/%s", name);
    if (!shared_path(within, path, sizeof path)) return NULL;
    check_ok(json_read_file(path, &root));
    return root;
}

const json_t *golden_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!value) fail_msg("no key '%s' in the golden values", key);
    return value;
}

double golden_value(const json_t *object, const char *key) { return json_number_value(golden_at(object, key)); }

double golden_number(const json_t *object, const char *key, double otherwise) {
    const json_t *value = json_object_get(object, key);
    return !value || json_is_null(value) ? otherwise : json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

bool golden_is(const json_t *object, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

size_t golden_numbers(const json_t *array, double *out, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (json_is_array(item)) {
            n += golden_numbers(item, out + n, max - n);
        } else {
            if (n == max) fail_msg("more than %zu golden values", max);
            out[n++] = json_is_boolean(item) ? json_is_true(item) : json_number_value(item);
        }
    }
    return n;
}

size_t golden_offsets(const json_t *lists, int64_t *begin, size_t max) {
    size_t n = json_array_size(lists);
    if (n >= max) fail_msg("more than %zu golden lists", max - 1);
    begin[0] = 0;
    for (size_t i = 0; i < n; i++) begin[i + 1] = begin[i] + (int64_t)json_array_size(json_array_get(lists, i));
    return n;
}

const char *temp_root(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}

void temp_dir_make(char *out, size_t size) {
    snprintf(out, size, "%s/tune-test-XXXXXX", temp_root());
    if (!mkdtemp(out)) fail_msg("cannot make '%s'", out);
}

void temp_dir_remove(const char *path) { check_ok(dir_remove(path)); }

char test_folder[64];

int test_folder_make(void **state) {
    (void)state;
    temp_dir_make(test_folder, sizeof test_folder);
    return 0;
}

int test_folder_remove(void **state) {
    (void)state;
    temp_dir_remove(test_folder);
    return 0;
}

const char *temp_file(const char *dir, const char *name) {
    static char paths[8][512];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

const char *temp_text(const char *dir, const char *name, const char *text) {
    const char *path = temp_file(dir, name);
    check_ok(file_write_all(path, text, strlen(text)));
    return path;
}

static void on_alarm(int number) {
    (void)number;
    interrupt_request();
}

void interrupt_after(int milliseconds) {
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000}}, NULL);
}

typedef struct Mutant {
    uint8_t *bytes;
    size_t len;
    RngKey key;
    uint64_t drawn;
} Mutant;

static size_t check_draw(Mutant *mutant, size_t n) { return (size_t)rng_below(mutant->key, mutant->drawn++, n); }

/* Draws a byte at a limit of lengths, signs or character classes. */
static uint8_t edge_byte(Mutant *mutant) {
    static const uint8_t edges[] = {0, 1, 0x20, 0x22, 0x2D, 0x30, 0x39, 0x5B, 0x5C, 0x5D, 0x7B, 0x7D, 0x7F, 0x80, 0xC0, 0xED, 0xF4, 0xFF};
    return edges[check_draw(mutant, sizeof edges)];
}

/* Inserts a copy of some bytes of the mutant at another place in it. */
static void mutant_double(Mutant *mutant) {
    size_t from = check_draw(mutant, mutant->len), n = 1 + check_draw(mutant, MIN(mutant->len - from, 64)), to = check_draw(mutant, mutant->len + 1);
    uint8_t piece[64];
    memcpy(piece, mutant->bytes + from, n);
    memmove(mutant->bytes + to + n, mutant->bytes + to, mutant->len - to);
    memcpy(mutant->bytes + to, piece, n);
    mutant->len += n;
}

static void mutant_cut(Mutant *mutant) {
    size_t from = check_draw(mutant, mutant->len), n = 1 + check_draw(mutant, MIN(mutant->len - from, 64));
    memmove(mutant->bytes + from, mutant->bytes + from + n, mutant->len - from - n);
    mutant->len -= n;
}

static void mutant_change(Mutant *mutant) {
    if (mutant->len == 0) return;
    size_t at = check_draw(mutant, mutant->len);
    switch (check_draw(mutant, 7)) {
    case 0: mutant->bytes[at] ^= (uint8_t)(1u << check_draw(mutant, 8)); break;
    case 1: mutant->bytes[at] = (uint8_t)check_draw(mutant, 256); break;
    case 2: mutant->bytes[at] = edge_byte(mutant); break;
    case 3: mutant_double(mutant); break;
    case 4: mutant_cut(mutant); break;
    case 5: mutant->len = check_draw(mutant, 8) == 0 ? at : mutant->len; break; /* rarely, since little of the input is left */
    default:                                                                    /* increments a digit or a size byte */
        for (size_t i = at; i < mutant->len && i < at + 8; i++) {
            if (mutant->bytes[i] >= '0' && mutant->bytes[i] <= '9') mutant->bytes[i] = '9';
        }
    }
}

void check_mutations(const void *bytes, size_t len, size_t rounds, MutationCallback *callback, void *context) {
    for (size_t round = 0; round < rounds; round++) {
        Mutant mutant = {.len = len, .key = rng_key(len, RNG_TEST, round)};
        size_t changes = 1 + check_draw(&mutant, 4);
        mutant.bytes = malloc(len + changes * 64 + 1);
        assert_non_null(mutant.bytes);
        memcpy(mutant.bytes, bytes, len);
        for (size_t i = 0; i < changes; i++) mutant_change(&mutant);
        uint8_t *exact = malloc(MAX(mutant.len, 1));
        assert_non_null(exact);
        memcpy(exact, mutant.bytes, mutant.len);
        callback(exact, mutant.len, context);
        free(exact);
        free(mutant.bytes);
    }
}

int in_child(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        body();
        _exit(0);
    }
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    return result;
}
