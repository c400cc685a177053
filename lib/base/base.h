/* What every other folder stands on: status, memory, strings, files, random numbers, JSON, YAML, messages. Knows no tensors.
 *
 *     static Status word_count(const char *path, size_t *count) {
 *         Lines lines;
 *         TRY(lines_open(&lines, path));                       // plain, .gz or .zst
 *         Slice line;
 *         *count = 0;
 *         while (lines_next(&lines, &line)) *count += line.len > 0;
 *         return lines_close(&lines);                          // a read error shows here
 *     }
 */
#ifndef TUNE_BASE_H
#define TUNE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define WARN_UNUSED __attribute__((warn_unused_result))
#define NORETURN __attribute__((noreturn))
#else
#define PRINTF_LIKE(fmt, args)
#define WARN_UNUSED
#define NORETURN
#endif
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- status: a user's or a file's fault, or a full resource, travels as a return value ---- */

typedef enum Status {
#define STATUS(name, exit_code, meaning) name,
#include "lib/base/status.def"
#undef STATUS
} Status;

/* Records what went wrong for this thread and returns `code`. Form: lower case, error first, subject in single quotes, no full stop:
 * "cannot read tensor 'lm_head.weight' in 'a.safetensors': shape (512,64), expected (32000,64)". Clears the hint. */
Status status_fail(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* Adds one line of advice to the failure just recorded; returns `code` so that it can end a function. */
Status status_hint(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* Puts "where: " before the recorded text, to add a file or row that only the caller knows. Returns `code`. */
Status status_prefix(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* For a failed system call: records "what: reason of error" and returns ST_RESOURCE (with a hint) for a full disk, quota, file size limit,
 * memory or descriptor shortage, else ST_INPUT. */
Status status_errno(int error, const char *format, ...) PRINTF_LIKE(2, 3);
/* The same where something was to be written: ST_RESOURCE always, as the fault lies with the disk and not with what was read. */
Status status_unwritable(int error, const char *format, ...) PRINTF_LIKE(2, 3);
/* A failure and its words, to be said again: later, behind a clean-up that may fail as well, or in another thread. Zeroed: none. */
typedef struct Failure { Status status; char text[2048], hint[1024]; } Failure;
void failure_keep(Failure *failure, Status status); /* the words that stand in this thread */
Status failure_say(const Failure *failure);         /* its status, with its words in this thread; ST_OK says nothing */
const char *status_text(void);      /* the text recorded last in this thread; "" when none; valid until the next failure */
const char *status_hint_text(void); /* the hint, or "" */
int status_exit_code(Status code);
const char *status_meaning(Status code);

/* Forwards a failing status. */
#define TRY(expr)                                     \
    do {                                              \
        Status try_status_ = (expr);                  \
        if (try_status_ != ST_OK) return try_status_; \
    } while (0)
/* Forwards a failing status by way of `label`; the function keeps a `Status status` that starts as ST_OK. */
#define TRY_GOTO(expr, label)                \
    do {                                     \
        status = (expr);                     \
        if (status != ST_OK) goto label;     \
    } while (0)

/* Our own mistake: prints the sentence with both sides and aborts. Never for a user's fault. */
#define ASSERT(condition, ...)                                                        \
    do {                                                                              \
        if (!(condition)) assert_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    } while (0)
NORETURN void assert_failed(const char *file, int line, const char *condition, const char *format, ...) PRINTF_LIKE(4, 5);

/* ---- memory ---- */

/* Multiplies and adds sizes that may come from a file; false when the result does not fit. */
bool size_mul(size_t a, size_t b, size_t *result) WARN_UNUSED;
bool size_add(size_t a, size_t b, size_t *result) WARN_UNUSED;

/* Memory given by the system alone, and given back to it whole. Aligned to huge pages, which need fewer translations while a training step streams
 * over them. `size`: a multiple of HUGE_PAGE. NULL when it can't be had. */
#define HUGE_PAGE ((size_t)2 << 20)
void *pages_map(size_t size);
void pages_unmap(void *pages, size_t size);

/* A lifetime: everything allocated from it lives until its reset or release; nobody frees single pieces. Not thread-safe. */
typedef struct Arena Arena;
/* `limit`: bytes the arena may hold at most, 0 = no limit. NULL, which is recorded as ST_RESOURCE, when even the first block is not to be had. */
Arena *arena_new(size_t limit);
void arena_free(Arena *arena); /* NULL is fine */
/* `size` bytes aligned to 64, not cleared (filled with 0xFF bytes - NaN - when built with TUNE_POISON). NULL when full: the failure is recorded as
 * ST_RESOURCE. */
void *arena_alloc(Arena *arena, size_t size);
void *arena_zero(Arena *arena, size_t size); /* the same, cleared */
char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t len);
char *arena_printf(Arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);
void arena_reset(Arena *arena);                 /* forgets all, keeps the memory for the next round */
typedef struct ArenaMark { void *block; size_t used; } ArenaMark;
ArenaMark arena_mark(const Arena *arena);       /* what is allocated after it ... */
void arena_rewind(Arena *arena, ArenaMark mark);/* ... is forgotten here */
size_t arena_used(const Arena *arena);          /* bytes in use */
size_t arena_peak(const Arena *arena);          /* the most that was ever in use, bytes */
/* What it holds of the machine's memory once all that it handed out was written to: whole pages of every block, bytes */
size_t arena_resident(const Arena *arena);
/* What one block of it holds of them when so many bytes are in use */
size_t arena_pages(size_t bytes);
/* Of an arena that has nothing in use: one block for the next so many bytes. Blocks that came one by one end in gaps, where something larger than in
 * the rounds before found no room. It takes no memory before it is written to; where it can't be had, all stays as it is. */
void arena_reserve(Arena *arena, size_t bytes);
/* The same of an arena in use: the next so many bytes, each allocation rounded up by arena_rounded, come from one block, of which no more than
 * arena_pages of them are touched */
void arena_expect(Arena *arena, size_t bytes);
size_t arena_rounded(size_t size); /* SIZE_MAX when it overflows */
/* For tests: the n-th allocation from now (counting from 1) over all arenas fails; 0 = none. */
void arena_fail_at(long n);

/* Arrays with room for more than is in them. `array` is the address of the array's pointer (NULL at first), `size` that of an item, `what` names the
 * items in the message ("tokens of a batch"). ST_RESOURCE, also where n x size does not fit: the array stays as it was. */
Status array_resize(void *array, size_t n, size_t size, const char *what);              /* of malloc's: exactly n */
/* Of malloc's: n at least; where it grows, to twice *cap at least, so pushing stays cheap */
Status array_grow(void *array, size_t *cap, size_t n, size_t size, const char *what);
Status arena_array_grow(Arena *arena, void *array, size_t *cap, size_t n, size_t size); /* the same in an arena, where the old array stays behind */

/* ---- strings ---- */

typedef struct Slice { const char *data; size_t len; } Slice; /* borrowed bytes, not terminated */
bool slice_is(Slice slice, const char *text);

/* A growing, always terminated string. {0} is an empty one. Out of memory aborts: text is small. */
typedef struct Str { char *data; size_t len, cap; } Str;
void str_append(Str *str, const char *text);
bool str_reserve(Str *str, size_t more) WARN_UNUSED; /* room for `more` bytes, for text of a file's size: false instead of an abort */
void str_append_n(Str *str, const char *bytes, size_t len);
void str_append_char(Str *str, char c);
void str_printf(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
void str_append_double(Str *str, double value); /* the shortest text that reads back as the same double */
void str_append_json(Str *str, const char *text, size_t len); /* as a quoted JSON string; bytes that are no UTF-8 become U+FFFD */
/* A word of a command line, quoted where a shell would read it as another one */
void str_append_shell(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
const char *str_text(const Str *str);           /* "" when nothing was added */
void str_clear(Str *str);
void str_release(Str *str);

/* Text of others for a line on the terminal, in place: blanks for ends of lines and tabs, '?' for what else would steer it. */
void text_keep_one_line(char *text);
bool text_starts_with(const char *text, const char *prefix);
bool text_ends_with(const char *text, const char *suffix);
/* Words of one text with `between` among them, as "a b c" and "a|b|c". The next word of *list, which moves behind it; false at the end. */
bool text_next(const char **list, char between, Slice *word);
bool text_among(const char *list, char between, const char *word); /* whether it is one of them; list NULL: there are none */
uint64_t mix64(uint64_t x); /* a well mixed bijection of 64 bits, for hashes: the end of MurmurHash3 */
/* The candidate with the smallest edit distance to `word`, or NULL when none is near enough to be meant. */
const char *text_nearest(const char *word, const char *const *candidates, size_t n_candidates);
/* Behind status_fail of an unknown `word`: the hint asks for the nearest candidate, else it is `otherwise`, with all candidates behind where
   that ends with a blank; no hint where it is NULL. Returns `code`. */
Status status_hint_nearest(Status code, const char *word, const char *const *candidates, size_t n_candidates, const char *otherwise);
/* Decodes one code point; returns bytes used (1..4), or 0 for invalid, overlong, surrogate or cut input. */
size_t utf8_decode(const char *bytes, size_t len, uint32_t *code_point);
size_t utf8_fault(const char *bytes, size_t len); /* offset of the first byte that is no UTF-8; len when all is */
size_t utf8_encode(uint32_t code_point, char out[4]); /* returns bytes written */
size_t utf8_whole_prefix(const char *bytes, size_t len); /* longest prefix that does not end inside a character that could still be completed */

const char *plural(int64_t n); /* what stands behind a counted noun: "" for 1, else "s" */
/* Human sizes for messages: "1.4 GiB", "3 min 20 s". Written to `out`, which is returned. */
const char *format_bytes(double bytes, char out[32]);
/* "4GiB", "1500 MB", "2.5G" (as GiB), "1000000": a whole number of bytes. False for anything else, 0 and below too. */
bool bytes_from_text(const char *text, size_t *bytes);
const char *format_seconds(double seconds, char out[32]);

/* ---- files ---- */

/* A path may be NULL, as an arena gives it that was full and has said so: ST_RESOURCE, or false. */

typedef struct Mapping { const uint8_t *data; size_t size; } Mapping;
Status file_map(const char *path, Mapping *mapping); /* read-only; an empty file gives size 0 and data NULL. ST_INPUT when missing */
/* ST_INPUT for what begins like the text that Git LFS leaves in the place of a large file; file_map and stream_open ask it. bytes: its first n. */
Status file_check_pointer(const char *path, const void *bytes, size_t n);
void file_unmap(Mapping *mapping);
void file_forget(const Mapping *mapping, size_t begin, size_t end); /* these bytes were read for now: the system may take their memory back */
/* Another program may write to a mapped file. Bytes that it cut off read as zeros from now on, instead of ending this program by SIGBUS; whoever
 * stores or tells a result asks file_check_cuts first: ST_INPUT once such bytes were looked for, until forgiven. */
void file_catch_cuts(void);
Status file_check_cuts(void);
void file_watch(const Mapping *mapping);       /* its bytes are looked up as they are needed: file_check_cuts warns, once, when it was written to */
bool file_forgive_cut(const Mapping *mapping); /* whether this file's bytes were the first that were missed; then they did no harm */
bool file_exists(const char *path);
/* The same where a file may be missing: ST_INPUT for a link that leads nowhere, since whoever made it meant the file to be there. */
Status file_find(const char *path, bool *there);
bool dir_exists(const char *path);
bool same_folder(const char *a, const char *b); /* by whatever names; false where one is not there */
Status file_read(const char *path, size_t limit, Str *text); /* whole file, unpacked as by ByteStream; longer than `limit` bytes is ST_INPUT */

/* Bytes of a file from its beginning. gzip and zstd are told by the first bytes and unpacked; a name in .gz or .zst promises them. */
typedef struct ByteStream ByteStream;
Status stream_open(const char *path, ByteStream **stream);
ptrdiff_t stream_read(ByteStream *stream, void *bytes, size_t size); /* bytes got; 0: the end; -1: see stream_fault */
/* Records why stream_read failed and returns the status: "cannot unpack 'PATH'PLACE: it ends too early"; place: "" or e.g. " after line 3". */
Status stream_fault(const ByteStream *stream, const char *place);
void stream_close(ByteStream *stream);

/* Lines of a text file, packed or not, of up to 1 GiB; '\n' and a '\r' before it are taken off. */
/* number: line of the slice returned last, from 1 */
typedef struct Lines { ByteStream *stream; char *path; Str buffer; size_t start, number; bool ended; Status status; } Lines;
Status lines_open(Lines *lines, const char *path);
bool lines_next(Lines *lines, Slice *line); /* false at the end or on an error; the slice is valid until the next call */
Status lines_close(Lines *lines);           /* gives the read error, if there was one */

/* A file that appears whole or not at all: written beside its name as .NAME.tmp-PID, synced, renamed. A full disk is ST_RESOURCE
 * (a program with a file size limit ignores SIGXFSZ to see it). */
typedef struct FileWriter {
    int fd;
    char *path, *temporary;
    uint8_t *buffer;
    size_t used;
    uint64_t written;
    uint32_t crc;
    int error;
    Status status;
} FileWriter; /* crc: zlib's crc32 of all bytes */
Status writer_open(FileWriter *writer, const char *path);
void writer_write(FileWriter *writer, const void *bytes, size_t size); /* failures stick and show in commit */
void writer_printf(FileWriter *writer, const char *format, ...) PRINTF_LIKE(2, 3);
Status writer_flush(FileWriter *writer);   /* writes what is held back, and tells the first failure so far */
Status writer_commit(FileWriter *writer);  /* flush, fsync, rename, fsync of the folder */
/* Instead of commit, also after a failure: the whole lines that are there so far stay as PATH.partial. Returns their number; 0: there are none, and
 * no file. Records no failure of its own. */
size_t writer_keep_lines(FileWriter *writer);
void writer_abandon(FileWriter *writer);   /* removes the temporary; harmless after commit */
Status file_write_all(const char *path, const void *bytes, size_t size); /* the three above in one */
Status file_append(const char *path, const void *bytes, size_t size);    /* adds to the end; a short write is undone and ST_RESOURCE */
Status file_truncate(const char *path, uint64_t size);                   /* ST_INPUT when the file is shorter already */
Status file_copy(const char *from, const char *to);                      /* atomically */

Status dir_make(const char *path);               /* with parents; existing is fine. ST_RESOURCE */
Status dir_could_make(const char *path);         /* what dir_make would say, as far as can be told without making anything */
Status dir_remove(const char *path);             /* with all that is in it; missing is fine */
Status dir_rename(const char *from, const char *to); /* and syncs the parent */
Status dir_sync(const char *path);
Status dir_list(const char *path, Arena *arena, char ***names, size_t *count); /* sorted, without . and .. */
/* Makes `dir` of what `write` puts into the folder `made`, hidden beside it: it appears whole, and what was there before goes only then. A failure,
 * which is `write`'s as it said it, or ST_RESOURCE, leaves all as it was. */
Status dir_build(const char *dir, Status (*write)(void *context, const char *made), void *context);
char *path_join(Arena *arena, const char *dir, const char *name); /* NULL: no memory, or one of them is NULL */
const char *path_name(const char *path);         /* behind the last slash */

/* ---- a program beside this one, asked in lines. The program that uses it ignores SIGPIPE ---- */

typedef struct Child Child;
/* What a program that is not trusted may do: no network (Linux; 256 processes at most, then), its address space, its processor time. 0 = no limit. */
typedef struct ChildLimits { bool no_network; uint64_t memory_bytes, cpu_seconds; } ChildLimits;
/* Starts argv[0], looked for along PATH, with n - 1 arguments in a process group of its own. limits: NULL = as this one. ST_INPUT: it can't be
 * started; ST_RESOURCE, also where the system does not let it leave the network. The caller calls child_stop. */
Status child_start(const char *const *argv, size_t n, const ChildLimits *limits, Child **child);
/* Sends `text` and appends its next `n_lines` lines (1 or more), with their ends, to `reply`; at most `seconds` in all. ST_RESOURCE: it ended (with
 * its exit code or signal) or did not answer in time; ST_INTERRUPTED. After a failure it is of no more use. */
Status child_ask(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply);
/* The same in two steps, for up to 64 programs at once: `text` stays where it is until the answer. children_next waits until one of those that were
 * begun has answered or failed: its index, its answer and its status; *which = n when none was begun. ST_INTERRUPTED: nothing has answered yet, and
 * all of them are of no more use. A child that is NULL is passed over. */
void child_begin(Child *child, const char *text, size_t len, size_t n_lines, double seconds);
Status children_next(Child *const *children, size_t n, size_t *which, Str *reply);
bool child_has_ended(const Child *child); /* as a failure has shown */
/* What it has said so far beyond what it was asked for, between an answer and the next question. Borrowed until the next call */
Slice child_unasked(Child *child);
/* The last line that it wrote to stderr, where programs say why they end; empty: none, also without a child. Borrowed until the next call */
Slice child_last_line(const Child *child);
Status child_add_last_line(const Child *child, Status status); /* the same as a hint to the failure `status`, which it returns */
/* Sends `farewell` (NULL: none), closes its input, gives it `patience` seconds to end, ends it and what it started, frees. Records no failure. NULL
 * is fine. */
void child_stop(Child *child, const char *farewell, double patience);

/* ---- numbers that come one by one ---- */

/* Their mean and spread, by Welford's update (Technometrics 4, 1962): equal numbers have no spread at all, and large ones keep their digits, which
 * sums of squares lose. Begins as all zeros; over all numbers, not a sample's estimate. NaN before the first one. */
typedef struct Tally { int64_t n; double mean, squares; } Tally; /* squares: of distances from the mean */
void tally_add(Tally *tally, double value);
double tally_mean(const Tally *tally);
double tally_variance(const Tally *tally);
double tally_std(const Tally *tally);

/* ---- random numbers by counter: Philox4x32-10 (Salmon et al. 2011, Random123). The same everywhere, any order, any thread ---- */

typedef enum RngStream { RNG_INIT = 1, RNG_SHUFFLE, RNG_DROPOUT, RNG_SAMPLE, RNG_EXPLORE, RNG_NOISE, RNG_TEST } RngStream;
typedef struct RngKey { uint64_t seed; uint64_t stream; } RngKey; /* stream: a RngStream in the top 8 bits, the caller's number below */
RngKey rng_key(uint64_t seed, RngStream stream, uint64_t number);
void rng_block(RngKey key, uint64_t index, uint32_t out[4]);
uint64_t rng_u64(RngKey key, uint64_t index);
double rng_uniform(RngKey key, uint64_t index);  /* [0,1), 53 bits */
double rng_normal(RngKey key, uint64_t index);   /* mean 0, variance 1, Box-Muller */
uint64_t rng_below(RngKey key, uint64_t index, uint64_t n); /* 0..n-1, unbiased to 2^-64 n */
/* Item `index` of a random permutation of 0..n-1 that is never stored (Feistel network, cycle walking). */
uint64_t rng_permute(RngKey key, uint64_t n, uint64_t index);

/* ---- JSON (jansson) ---- */

/* Parses strict UTF-8 JSON without duplicate keys. The caller calls json_decref. Errors name file, line and column. In a file integers beyond 64 bits
 * are reals: transformers writes 10^30 as model_max_length where there is none. */
Status json_read_file(const char *path, json_t **root);
/* What is JSON, whatever its numbers are: whole ones beyond 64 bits become reals. flags: jansson's. NULL: it is none. The caller decrefs it. */
json_t *json_of_text(const char *text, size_t len, size_t flags);
Status json_read_text(const char *text, size_t len, const char *where, json_t **root); /* where: for messages, a file or what else the text is */
Status json_read_line(const char *text, size_t len, const char *file, size_t line, json_t **root); /* one line of a file */
Status json_line_fault(const char *file, size_t line, const json_error_t *error); /* the failure of such a line */
/* A row of data, whose columns are not all used: strings may hold NUL, which whoever uses one asks for; with `widen` integers beyond 64 bits are
 * reals, numbers beyond doubles are strings of them. */
json_t *json_load_row(const char *text, size_t len, bool widen, json_error_t *error);
bool json_holds_wide(const json_t *value); /* a number of 2^63 or more, which json_load_row may have widened: it is not written as it stood */
bool json_holds_nul(const json_t *value); /* in any string of it */
/* Members of an object; a wrong type is ST_INPUT naming `where` and the key. A missing or null key leaves *value as it is. */
Status json_get_int(const json_t *object, const char *where, const char *key, int64_t *value);
Status json_get_double(const json_t *object, const char *where, const char *key, double *value); /* an integer is fine */
Status json_get_bool(const json_t *object, const char *where, const char *key, bool *value);
Status json_get_string(const json_t *object, const char *where, const char *key, const char **value); /* borrowed from object */
/* Numbers that may not be known: NaN here, null in a file. */
json_t *json_real_or_null(double value);                      /* a new reference; infinities become null, too */
double json_real_of(const json_t *object, const char *key);   /* NaN for what is missing or no number */

/* Writes JSON text piece by piece into a Str; commas are placed by themselves. Doubles read back the same; NaN and infinities become null. */
typedef struct JsonWriter { Str text; int depth; bool comma, pretty; } JsonWriter;
void jw_object(JsonWriter *w, const char *key); /* key NULL inside arrays and at the top */
void jw_array(JsonWriter *w, const char *key);
void jw_end_object(JsonWriter *w);
void jw_end_array(JsonWriter *w);
void jw_string(JsonWriter *w, const char *key, const char *value); /* NULL value: null */
void jw_string_n(JsonWriter *w, const char *key, const char *value, size_t len);
void jw_int(JsonWriter *w, const char *key, int64_t value);
void jw_double(JsonWriter *w, const char *key, double value);
void jw_bool(JsonWriter *w, const char *key, bool value);
void jw_null(JsonWriter *w, const char *key);
void jw_raw(JsonWriter *w, const char *key, const char *json); /* a value that is JSON already */
void jw_release(JsonWriter *w);

/* ---- YAML (libyaml's events), with the line of every node for messages ---- */

typedef enum YamlKind { YAML_NULL, YAML_SCALAR, YAML_LIST, YAML_MAP } YamlKind;
typedef struct Yaml Yaml;
struct Yaml {
    YamlKind kind;
    bool quoted;             /* a quoted scalar is a string even if it looks like a number or null */
    int line;                /* from 1; 0 when it comes from the command line */
    const char *text;        /* YAML_SCALAR */
    size_t n;                /* children */
    const char **keys;       /* YAML_MAP: n keys, NULL for lists */
    int *key_lines;
    Yaml **items;            /* n children */
};
/* All nodes are in `arena`. Limits: 1 MiB of text, depth 32, 100000 nodes; anchors and aliases are refused; a duplicate key is an error. ST_CONFIG
 * with file and line. */
Status yaml_read_file(const char *path, Arena *arena, Yaml **root);
Status yaml_read_text(const char *text, size_t len, const char *where, Arena *arena, Yaml **root);
void yaml_forget_lines(Yaml *node); /* of a text that stands in no file: all lines are 0 */
Yaml *yaml_get(const Yaml *map, const char *key); /* NULL when missing */
bool yaml_as_int(const Yaml *node, int64_t *value);
bool yaml_as_double(const Yaml *node, double *value); /* 2e-4, .5 and 1 are all fine */
bool yaml_as_bool(const Yaml *node, bool *value);     /* true false yes no on off */
void str_append_yaml(Str *str, const char *text);     /* as a scalar, quoted when plain style would change its meaning */

/* ---- messages and the outside ---- */

typedef enum LogLevel { LOG_WARNING, LOG_INFO } LogLevel;
typedef void LogSink(void *context, LogLevel level, const char *text);
void log_set_sink(LogSink *sink, void *context, LogLevel highest); /* libraries never print; the program sets this once */
void log_set_record(LogSink *record, void *context); /* gets all warnings as well, whoever gives them; NULL: none */
void log_message(LogLevel level, const char *format, ...) PRINTF_LIKE(2, 3);
bool log_wants(LogLevel level);

void interrupt_request(void);     /* async-signal-safe */
void interrupt_clear(void);       /* what was interrupted has ended, and the program goes on */
bool interrupt_requested(void);   /* long loops look at it between steps */
double clock_seconds(void);       /* monotonic */
uint64_t memory_available(void);  /* bytes that this process may still take: the machine's and the control group's limit */
int64_t near_cache_bytes(void);   /* a processor's second-level cache; 0 when the system does not say */
int64_t far_cache_bytes(void);    /* the one in front of memory, as large as its sharers make it; 0 likewise */
/* Processors that this process may use: by its affinity (taskset, Slurm) and by the limits of its control groups (containers), 1 or more */
int cores_available(void);
/* The same, but one of those that share a core's units (SMT); folder: NULL = the system's, /sys/devices/system/cpu on Linux */
int cores_physical(const char *folder);
uint64_t memory_resident(void);   /* of this process now, with the pages of mapped files, bytes; 0 where the system does not tell */
uint64_t memory_of_files(void);   /* the part of it that is pages of mapped files, the program's own among them; 0 where the system does not tell */
void memory_give_back(void);      /* what was freed and the C library still keeps goes back to the system, where it can be told to (glibc) */
uint64_t memory_peak(void);       /* largest resident size of this process so far, bytes */

#endif
