/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of tokenised rows, found by a hash of their inputs. */
#include "lib/base/gguf.h"
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "data/dataset/cache.h"
#include "data/formats/conversation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK ((size_t)1 << 20)

/* ---- the key ---- */

typedef struct Hasher {
    XXH3_state_t *state;
    uint8_t *chunk;
} Hasher;

static void add_bytes(Hasher *hasher, const void *bytes, size_t size) { XXH3_128bits_update(hasher->state, bytes, size); }

static void add_number(Hasher *hasher, int64_t value) { add_bytes(hasher, &value, sizeof value); }

/* Hashes the length, too, so that different lists of texts never give the same bytes. */
static void add_text(Hasher *hasher, const char *text) {
    add_number(hasher, text ? (int64_t)strlen(text) : -1);
    if (text) add_bytes(hasher, text, strlen(text));
}

static FileStamp stamp_of(const struct stat *info) {
#ifdef __APPLE__
    int64_t nanoseconds = info->st_mtimespec.tv_nsec;
#else
    int64_t nanoseconds = info->st_mtim.tv_nsec;
#endif
    return (FileStamp){(uint64_t)info->st_dev, (uint64_t)info->st_ino, (uint64_t)info->st_size, (int64_t)info->st_mtime, nanoseconds};
}

static Status add_open_file(Hasher *hasher, int fd, const char *path) {
    int64_t size = 0;
    for (;;) {
        ssize_t got = read(fd, hasher->chunk, CHUNK);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return status_errno(errno, "cannot read '%s'", path);
        if (got == 0) break;
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted while reading '%s'", path);
        add_bytes(hasher, hasher->chunk, (size_t)got);
        size += got;
        work_at_bytes("looking at the rows' files", (uint64_t)size, 0);
    }
    add_number(hasher, size);
    return ST_OK;
}

/* Hashes the name (its ending says how the file is read) and all bytes. */
static Status add_file(Hasher *hasher, const char *path, FileStamp *stamp) {
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return status_errno(errno, "cannot open '%s'", path);
    struct stat info;
    add_text(hasher, path_name(path));
    Status status = fstat(fd, &info) == 0 ? add_open_file(hasher, fd, path) : status_errno(errno, "cannot read '%s'", path);
    if (status == ST_OK && stamp) *stamp = stamp_of(&info);
    close(fd);
    return status;
}

/* Hashes everything that determines the tokens; weights do not. */
static Status add_folder(Hasher *hasher, const char *folder, Arena *arena) {
    static const char *const endings[] = {".json", ".jinja", ".txt", ".model"};
    char **names;
    size_t n;
    TRY(dir_list(folder, arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        const char *path = path_join(arena, folder, names[i]);
        bool matters = false;
        if (!path) return ST_RESOURCE;
        for (size_t e = 0; e < COUNT_OF(endings); e++) matters |= text_ends_with(names[i], endings[e]);
        if (matters && file_exists(path)) TRY(add_file(hasher, path, NULL));
        if (strcmp(names[i], "additional_chat_templates") == 0 && dir_exists(path)) TRY(add_folder(hasher, path, arena));
    }
    return ST_OK;
}

static Status add_gguf(Hasher *hasher, const char *path) {
    Gguf *gguf;
    TRY(gguf_open(path, &gguf));
    for (size_t i = 0; i < gguf->n_values; i++) {
        const GgufValue *value = &gguf->values[i];
        if (!text_starts_with(value->key, "tokenizer.")) continue;
        add_text(hasher, value->key);
        add_number(hasher, (int64_t)value->bytes);
        add_bytes(hasher, value->data, value->bytes);
    }
    gguf_close(gguf);
    return ST_OK;
}

static Status add_tokenizer(Hasher *hasher, const char *path) {
    if (!path) return ST_OK;
    if (gguf_is(path)) return add_gguf(hasher, path);
    if (!dir_exists(path)) return add_file(hasher, path, NULL);
    Arena *arena = arena_new(0);
    Status status = arena ? add_folder(hasher, path, arena) : status_fail(ST_RESOURCE, "out of memory");
    arena_free(arena);
    return status;
}

/* A template that writes the date makes other rows every day. */
static void add_chat(Hasher *hasher, const Chat *chat) {
    if (!chat_has_template(chat)) return;
    for (int with_tools = 0; with_tools < 2; with_tools++) {
        Str text = {0};
        chat_template_text(chat->template, with_tools, &text);
        add_text(hasher, str_text(&text));
        str_release(&text);
    }
    time_t now = time(NULL);
    struct tm day = {0};
    if (chat_writes_date(chat) && !chat->now) localtime_r(&now, &day);
    add_text(hasher, chat->now);
    add_number(hasher, day.tm_year * 1000 + day.tm_yday);
}

static void add_names(Hasher *hasher, const Yaml *columns) {
    size_t n = columns && columns->kind == YAML_MAP ? columns->n : 0;
    add_number(hasher, columns ? (int64_t)n : -1);
    for (size_t i = 0; i < n; i++) {
        add_text(hasher, columns->keys[i]);
        add_text(hasher, columns->items[i]->text);
    }
}

static void add_settings(Hasher *hasher, const DataConfig *config) {
    add_text(hasher, config->program);
    add_text(hasher, config->format);
    add_text(hasher, config->as);
    add_names(hasher, config->columns);
    add_text(hasher, config->train_on);
    add_text(hasher, config->step_separator);
    add_text(hasher, config->system);
    add_text(hasher, config->turns);
    add_number(hasher, config->plain_control);
    add_text(hasher, config->truncation);
    add_number(hasher, config->max_length);
    add_number(hasher, config->vocab_size);
    add_number(hasher, config->positions);
    if (config->rejected) add_text(hasher, "bad rows are left out");
}

static void add_columns(Hasher *hasher, const ColumnMap *map) {
    add_number(hasher, map ? 1 + map->sharegpt + 2 * map->ranking : 0);
    if (!map) return;
    const char *const names[] = {map->prompt,   map->query,         map->response,        map->history,      map->messages,  map->system,
                                 map->tools,    map->chosen,        map->rejected,        map->kto_tag,      map->role_tag,  map->content_tag,
                                 map->user_tag, map->assistant_tag, map->observation_tag, map->function_tag, map->system_tag};
    for (size_t i = 0; i < COUNT_OF(names); i++) add_text(hasher, names[i]);
}

static Status add_sources(Hasher *hasher, const DataSource *sources, size_t n_sources, const DataFile *files, size_t n_files, FileStamp *stamps) {
    add_number(hasher, (int64_t)n_sources);
    for (size_t i = 0; i < n_sources; i++) { /* not the weight, which is applied when rows are drawn */
        add_text(hasher, sources[i].format);
        add_text(hasher, sources[i].separator);
        add_columns(hasher, sources[i].columns);
        add_names(hasher, sources[i].names);
        add_number(hasher, sources[i].max_rows);
    }
    for (size_t i = 0; i < n_files; i++) {
        add_number(hasher, files[i].source);
        TRY(add_file(hasher, files[i].path, &stamps[i]));
    }
    return ST_OK;
}

bool cache_applies(const DataFile *files, size_t n_files) {
    for (size_t i = 0; i < n_files; i++) {
        struct stat info;
        if (file_stat(files[i].path, &info) != 0 || S_ISREG(info.st_mode)) continue;
        log_message(LOG_WARNING, "'data.cache' is not used: '%s' is not a regular file, so it can be read only once", files[i].path);
        return false;
    }
    return true;
}

Status cache_key(const DataConfig *config, const DataSource *sources, size_t n_sources, const DataFile *files, size_t n_files, StoreKey *key,
                 FileStamp *stamps) {
    Hasher hasher = {XXH3_createState(), malloc(CHUNK)};
    Status status = ST_OK;
    if (!hasher.state || !hasher.chunk) {
        status = status_fail(ST_RESOURCE, "out of memory");
        goto done;
    }
    XXH3_128bits_reset(hasher.state);
    add_settings(&hasher, config);
    add_chat(&hasher, config->chat);
    TRY_GOTO(add_tokenizer(&hasher, config->tokenizer), done);
    TRY_GOTO(add_sources(&hasher, sources, n_sources, files, n_files, stamps), done);
    XXH128_hash_t hash = XXH3_128bits_digest(hasher.state);
    *key = (StoreKey){hash.low64, hash.high64};
done:
    work_end("looking at the rows' files");
    if (hasher.state) XXH3_freeState(hasher.state);
    free(hasher.chunk);
    return status;
}

Status cache_unchanged(const DataFile *files, size_t n_files, const FileStamp *stamps) {
    for (size_t i = 0; i < n_files; i++) {
        struct stat info;
        if (file_stat(files[i].path, &info) != 0) return status_errno(errno, "cannot read '%s'", files[i].path);
        FileStamp now = stamp_of(&info);
        if (now.device != stamps[i].device || now.inode != stamps[i].inode || now.size != stamps[i].size || now.seconds != stamps[i].seconds ||
            now.nanoseconds != stamps[i].nanoseconds)
            return status_hint(status_fail(ST_INPUT, "'%s' changed while it was read", files[i].path), "start again when nobody writes to it");
    }
    return ST_OK;
}

/* ---- the folder ---- */

const char *cache_name(const StoreKey *key, char name[48]) {
    snprintf(name, 48, "rows-%016llx%016llx.bin", (unsigned long long)key->high, (unsigned long long)key->low);
    return name;
}

/* The writer of a file holds a lock on it; a file without a lock was left by a process that was killed. */
static void sweep(const char *folder, Arena *arena) {
    char **names;
    size_t n;
    if (dir_list(folder, arena, &names, &n) != ST_OK) return;
    for (size_t i = 0; i < n; i++) {
        if (!text_starts_with(names[i], ".rows-") || !strstr(names[i], ".tmp-")) continue;
        const char *path = path_join(arena, folder, names[i]);
        int fd = path ? UNTIL_DONE(open(path, O_RDWR | O_CLOEXEC)) : -1;
        if (fd < 0) continue;
        if (UNTIL_DONE(flock(fd, LOCK_EX | LOCK_NB)) == 0) (void)UNTIL_DONE(unlink(path));
        close(fd);
    }
}

Status cache_open(const char *folder, const StoreKey *key, int64_t vocab_size, Store **store) {
    char name[48];
    *store = NULL;
    TRY(dir_make(folder));
    Arena *arena = arena_new(0);
    const char *path = arena ? path_join(arena, folder, cache_name(key, name)) : NULL;
    Status status = path ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (path) sweep(folder, arena);
    if (path && file_exists(path)) {
        status = store_open(path, key, vocab_size, store);
        if (status == ST_INPUT) {
            log_message(LOG_WARNING, "'%s' is not used: %s; rows are tokenised again", path, status_text());
            status = ST_OK;
        }
    }
    arena_free(arena);
    return status;
}
