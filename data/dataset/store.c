/* SPDX-License-Identifier: Apache-2.0 */
/* The file of tokenised rows: written as two files (words, and the table of rows, which is appended to the words at the end), then mapped. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "data/dataset/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK ((size_t)1 << 20)
#define RESIDENT_LIMIT ((size_t)4 << 20) /* number of pages read before they are released */
#define RESIDENT_STEP ((size_t)64 << 10) /* bytes loaded by one page fault: systems load neighbouring pages, too */

static const char magic[16] = "tune rows 2\n\r\x1a";
typedef struct Head {
    char magic[16];
    StoreKey key;
} Head;
typedef struct Foot {
    uint64_t n_rows, table, about, about_len;
    uint64_t hash_low, hash_high;
} Foot; /* table, about: offsets */

struct Store {
    const uint8_t *data;
    size_t size, n;
    const StoreRow *rows;
    Slice about;
    atomic_size_t resident;
};
/* A file that grows at its end. */
typedef struct Growing {
    int fd; /* -1: none */
    size_t used;
    uint8_t held[64 << 10];
} Growing;
struct StoreWriter {
    Growing words, table;
    char *folder, *name, *temporary; /* name, temporary: paths; NULL for an unnamed file */
    XXH3_state_t *hash;              /* of a named file */
    uint64_t written, n_rows;
    int error; /* errno of the first failure */
};

/* ---- writing ---- */

static Status writer_status(const StoreWriter *writer) {
    if (writer->error == 0) return ST_OK;
    /* If the cache's parent folder is missing, the name is probably wrong. */
    if (writer->name && writer->error == ENOENT) return status_errno(ENOENT, "cannot write tokenised rows into '%s'", writer->folder);
    return status_unwritable(writer->error, "cannot write tokenised rows into '%s'", writer->folder);
}

static void write_all(StoreWriter *writer, int fd, const uint8_t *bytes, size_t size) {
    while (writer->error == 0 && size > 0) {
        ssize_t done = write(fd, bytes, MIN(size, (size_t)1 << 30));
        if (done < 0 && errno != EINTR) writer->error = errno;
        if (done <= 0) continue;
        bytes += done;
        size -= (size_t)done;
    }
}

static void flush(StoreWriter *writer, Growing *file) {
    write_all(writer, file->fd, file->held, file->used);
    file->used = 0;
}

static void store_add(StoreWriter *writer, Growing *file, const void *bytes, size_t size) {
    if (size > sizeof file->held - file->used) flush(writer, file);
    if (size > sizeof file->held) {
        write_all(writer, file->fd, bytes, size);
        return;
    }
    memcpy(file->held + file->used, bytes, size);
    file->used += size;
}

static void write_bytes(StoreWriter *writer, const void *bytes, size_t size) {
    if (writer->error != 0 || size == 0) return;
    store_add(writer, &writer->words, bytes, size);
    if (writer->hash) XXH3_128bits_update(writer->hash, bytes, size);
    writer->written += size;
}

/* A file that no other process sees. If the file system cannot create unnamed files, the name is removed at once. */
static int open_nameless(const char *folder) {
    int fd = -1;
#ifdef O_TMPFILE
    fd = UNTIL_DONE(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
#endif
    if (fd < 0) {
        Str path = {0};
        str_printf(&path, "%s/.tune-rows-XXXXXX", folder);
        if (path.data) fd = UNTIL_DONE(mkostemp(path.data, O_CLOEXEC));
        if (fd >= 0) (void)UNTIL_DONE(unlink(path.data));
        str_release(&path);
    }
    return fd;
}

/* A name that no other process uses, on any machine that shares the folder. The lock shows that the writer is alive (see cache.c, which removes files
 * of dead processes). If another process removes the file before the lock is taken, an unnamed file remains. */
static int open_named(const char *folder, const char *name, char **temporary) {
    Str path = {0};
    struct stat info;
    int fd;
    do {
        str_clear(&path);
        str_printf(&path, "%s/.%s.tmp-%ld-%llx", folder, name, (long)getpid(), (unsigned long long)(clock_seconds() * 1e9));
        fd = UNTIL_DONE(open(str_text(&path), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (fd < 0 && errno != EEXIST) break;
        if (fd >= 0) (void)UNTIL_DONE(flock(fd, LOCK_EX));
        if (fd >= 0 && fstat(fd, &info) == 0 && info.st_nlink > 0) break;
        if (fd >= 0) close(fd);
    } while (true);
    *temporary = path.data;
    return fd;
}

static char *copy_text(const char *text) {
    Str copy = {0};
    str_append(&copy, text);
    return copy.data;
}

Status store_create(const char *folder, const char *name, const StoreKey *key, StoreWriter **result) {
    StoreWriter *writer = calloc(1, sizeof *writer);
    *result = NULL;
    if (!writer) return status_fail(ST_RESOURCE, "out of memory");
    writer->words.fd = writer->table.fd = -1;
    writer->folder = copy_text(folder);
    if (name) {
        Str path = {0};
        str_printf(&path, "%s/%s", folder, name);
        writer->name = path.data;
        writer->hash = XXH3_createState();
        if (writer->hash) XXH3_128bits_reset(writer->hash);
        if (writer->hash) writer->words.fd = open_named(folder, name, &writer->temporary);
    } else {
        writer->words.fd = open_nameless(folder);
    }
    if (writer->words.fd >= 0) writer->table.fd = open_nameless(folder);
    if (writer->table.fd < 0) writer->error = errno ? errno : ENOMEM;
    Head head = {.key = key ? *key : (StoreKey){0}};
    memcpy(head.magic, magic, sizeof magic);
    write_bytes(writer, &head, sizeof head);
    Status status = writer_status(writer);
    if (status != ST_OK) {
        store_abandon(writer);
        return status;
    }
    *result = writer;
    return ST_OK;
}

size_t store_words_count(const StoreRow *row) { return (size_t)row->n * (1 + (row->own_targets != 0)) + 2 * ((size_t)row->n_runs + row->n_branches); }

Status store_append(StoreWriter *writer, StoreRow *row, const int32_t *words) {
    row->offset = writer->written;
    write_bytes(writer, words, store_words_count(row) * sizeof *words);
    if (writer->error == 0) store_add(writer, &writer->table, row, sizeof *row);
    writer->n_rows++;
    return writer_status(writer);
}

static void append_table(StoreWriter *writer) {
    char chunk[16 << 10];
    ssize_t got = 1;
    flush(writer, &writer->table);
    for (off_t at = 0; writer->error == 0 && got != 0; at += MAX(got, 0)) {
        got = pread(writer->table.fd, chunk, sizeof chunk, at);
        if (got > 0) write_bytes(writer, chunk, (size_t)got);
        if (got < 0 && errno != EINTR) writer->error = errno;
    }
}

static void write_end(StoreWriter *writer, const char *about, size_t about_len) {
    static const char padding[8];
    Foot foot = {.n_rows = writer->n_rows};
    write_bytes(writer, padding, (size_t)(-writer->written & 7));
    foot.table = writer->written;
    append_table(writer);
    foot.about = writer->written;
    foot.about_len = about_len;
    write_bytes(writer, about, about_len);
    write_bytes(writer, padding, (size_t)(-writer->written & 7));
    write_bytes(writer, &foot, offsetof(Foot, hash_low));
    if (writer->hash) {
        XXH128_hash_t hash = XXH3_128bits_digest(writer->hash);
        foot.hash_low = hash.low64;
        foot.hash_high = hash.high64;
    }
    write_bytes(writer, &foot.hash_low, sizeof foot - offsetof(Foot, hash_low));
    flush(writer, &writer->words);
}

/* Another process may have written the same file meanwhile: it has the same bytes, and processes that read it keep it. */
static void put_in_place(StoreWriter *writer) {
    if (writer->error == 0 && file_sync(writer->words.fd) != 0) writer->error = errno;
    if (writer->error == 0 && UNTIL_DONE(rename(writer->temporary, writer->name)) != 0) writer->error = errno;
    if (writer->error != 0) return;
    free(writer->temporary);
    writer->temporary = NULL;
}

static Status map_store(int fd, size_t size, Store **result);

Status store_finish(StoreWriter *writer, const char *about, size_t about_len, Store **store) {
    *store = NULL;
    write_end(writer, about, about_len);
    if (writer->name) put_in_place(writer);
    Status status = writer_status(writer);
    if (status == ST_OK && writer->name) status = dir_sync(writer->folder);
    if (status == ST_OK) status = map_store(writer->words.fd, (size_t)writer->written, store);
    if (status == ST_OK) {
        const Foot *foot = (const Foot *)((*store)->data + (*store)->size - sizeof *foot);
        (*store)->n = (size_t)foot->n_rows;
        (*store)->rows = (const StoreRow *)((*store)->data + foot->table);
        (*store)->about = (Slice){(const char *)(*store)->data + foot->about, (size_t)foot->about_len};
    }
    store_abandon(writer);
    return status;
}

void store_abandon(StoreWriter *writer) {
    if (!writer) return;
    if (writer->temporary) (void)UNTIL_DONE(unlink(writer->temporary));
    if (writer->words.fd >= 0) close(writer->words.fd);
    if (writer->table.fd >= 0) close(writer->table.fd);
    if (writer->hash) XXH3_freeState(writer->hash);
    free(writer->folder);
    free(writer->name);
    free(writer->temporary);
    free(writer);
}

/* ---- reading ---- */

static Status map_store(int fd, size_t size, Store **result) {
    Store *store = calloc(1, sizeof *store);
    if (!store) return status_fail(ST_RESOURCE, "out of memory");
    void *data;
    do data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    while (data == MAP_FAILED && errno == EINTR);
    if (data == MAP_FAILED) {
        free(store);
        return status_errno(errno, "cannot map tokenised rows");
    }
    store->data = data;
    store->size = size;
    *result = store;
    return ST_OK;
}

static void give_back(const Store *store) { madvise((void *)(uintptr_t)store->data, store->size, MADV_DONTNEED); }

static void looked_at(const Store *store, size_t bytes) {
    if (store->size <= RESIDENT_LIMIT) return;
    atomic_size_t *resident = (atomic_size_t *)(uintptr_t)&store->resident; /* a measure of cost only: rows do not depend on it */
    if (atomic_fetch_add_explicit(resident, bytes, memory_order_relaxed) < RESIDENT_LIMIT) return;
    atomic_store_explicit(resident, 0, memory_order_relaxed);
    give_back(store);
}

static Status check_sum(const Store *store) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) return status_fail(ST_RESOURCE, "out of memory");
    Foot foot;
    memcpy(&foot, store->data + store->size - sizeof foot, sizeof foot);
    size_t size = store->size - sizeof foot + offsetof(Foot, hash_low);
    Status status = ST_OK;
    XXH3_128bits_reset(state);
    for (size_t at = 0; at < size && status == ST_OK; at += CHUNK) {
        XXH3_128bits_update(state, store->data + at, MIN(CHUNK, size - at));
        looked_at(store, CHUNK);
        work_at_bytes("checking data.cache", at, size);
        if (interrupt_requested()) status = status_fail(ST_INTERRUPTED, "interrupted");
    }
    work_end("checking data.cache");
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    if (status == ST_OK && (hash.low64 != foot.hash_low || hash.high64 != foot.hash_high)) status = status_fail(ST_INPUT, "its checksum is wrong");
    return status;
}

/* Reads the positions of table and text from the foot. */
static bool find_parts(Store *store) {
    Foot foot;
    memcpy(&foot, store->data + store->size - sizeof foot, sizeof foot);
    uint64_t end = store->size - sizeof foot;
    if (foot.table < sizeof(Head) || foot.table > end || foot.table % 8 != 0) return false;
    if (foot.n_rows > (end - foot.table) / sizeof(StoreRow)) return false;
    if (foot.about != foot.table + foot.n_rows * sizeof(StoreRow) || foot.about_len > end - foot.about) return false;
    store->n = (size_t)foot.n_rows;
    store->rows = (const StoreRow *)(store->data + foot.table);
    store->about = (Slice){(const char *)store->data + foot.about, (size_t)foot.about_len};
    return true;
}

static bool ids_fit(const int32_t *ids, size_t n, int64_t vocab_size) {
    uint32_t largest = 0; /* a negative id becomes a large one */
    for (size_t i = 0; i < n; i++) largest = MAX(largest, (uint32_t)ids[i]);
    return largest <= INT32_MAX && (vocab_size <= 0 || (int64_t)largest < vocab_size);
}

/* Checks that runs are in order, apart, within the row, and have as many tokens as the table says. */
static bool runs_fit(const StoreRow *row, const int32_t *runs) {
    int64_t end = 1, trained = 0;
    for (size_t i = 0; i < row->n_runs; i++) {
        int32_t from = runs[2 * i], to = runs[2 * i + 1];
        if (from < end || to <= from || to > row->n) return false;
        trained += to - from;
        end = to;
    }
    return trained == row->trained;
}

/* Checks that branches are in order and apart, follow their parents, and that no first token of a text is trained. */
static bool branches_fit(const StoreRow *row, const int32_t *runs) {
    const int32_t *branches = runs + 2 * (size_t)row->n_runs;
    int64_t end = 0;
    size_t run = 0;
    for (size_t i = 0; i < row->n_branches; i++) {
        int32_t begin = branches[2 * i], parent = branches[2 * i + 1];
        if (begin < end || (i == 0 && begin != 0) || begin >= row->n || parent < -1 || parent >= (int64_t)i) return false;
        end = begin + (int64_t)1;
        while (run < row->n_runs && runs[2 * run + 1] <= begin) run++;
        if (parent < 0 && run < row->n_runs && runs[2 * run] <= begin) return false;
    }
    return row->depth >= 1 && row->depth <= row->n && (row->n_branches > 0 || row->depth == row->n);
}

static bool row_fits(const Store *store, const StoreRow *row, int64_t vocab_size) {
    uint64_t table = (uint64_t)((const uint8_t *)store->rows - store->data);
    if (row->n < 1 || row->n_runs > (uint32_t)row->n || row->n_branches > (uint32_t)row->n || row->own_targets > 1 ||
        !(row->weight >= 0 && row->weight <= 1e6))
        return false;
    if (row->offset < sizeof(Head) || row->offset % 4 != 0 || row->offset > table || store_words_count(row) > (table - row->offset) / 4) return false;
    const int32_t *words = (const int32_t *)(store->data + row->offset), *targets = words + (row->own_targets ? row->n : 0), *runs = targets + row->n;
    if (!ids_fit(words, (size_t)row->n, vocab_size) || !runs_fit(row, runs) || !branches_fit(row, runs)) return false;
    for (size_t i = 0; row->own_targets && i < row->n_runs; i++)
        if (!ids_fit(targets + runs[2 * i], (size_t)(runs[2 * i + 1] - runs[2 * i]), vocab_size)) return false;
    return true;
}

static Status check_rows(const Store *store, int64_t vocab_size) {
    for (size_t i = 0; i < store->n; i++) {
        if (!row_fits(store, &store->rows[i], vocab_size)) return status_fail(ST_INPUT, "its row %zu is invalid", i + 1);
        looked_at(store, sizeof(StoreRow) + store_words_count(&store->rows[i]) * sizeof(int32_t));
    }
    return ST_OK;
}

static Status check_store(Store *store, const StoreKey *key, int64_t vocab_size) {
    const Head *head = (const Head *)store->data;
    if (memcmp(head->magic, magic, sizeof magic) != 0) return status_fail(ST_INPUT, "it is not a file of tokenised rows");
    if (head->key.low != key->low || head->key.high != key->high) return status_fail(ST_INPUT, "it was made of other rows or settings");
    TRY(check_sum(store));
    if (!find_parts(store)) return status_fail(ST_INPUT, "its parts do not fit together");
    return check_rows(store, vocab_size);
}

Status store_open(const char *path, const StoreKey *key, int64_t vocab_size, Store **result) {
    *result = NULL;
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return status_errno(errno, "cannot open '%s'", path);
    struct stat info;
    Store *store = NULL;
    Status status = ST_OK;
    if (fstat(fd, &info) != 0) {
        status = status_errno(errno, "cannot read '%s'", path);
    } else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size < sizeof(Head) + sizeof(Foot) || info.st_size % 8 != 0) {
        status = status_fail(ST_INPUT, "it is cut short");
    } else {
        status = map_store(fd, (size_t)info.st_size, &store);
    }
    close(fd);
    if (status == ST_OK) status = check_store(store, key, vocab_size);
    if (status != ST_OK) {
        store_close(store);
        return status;
    }
    *result = store;
    return ST_OK;
}

void store_close(Store *store) {
    if (!store) return;
    munmap((void *)(uintptr_t)store->data, store->size);
    free(store);
}

size_t store_count(const Store *store) { return store->n; }

Slice store_about(const Store *store) { return store->about; }

const StoreRow *store_row(const Store *store, size_t i) {
    looked_at(store, RESIDENT_STEP);
    return &store->rows[i];
}

const int32_t *store_words(const Store *store, const StoreRow *row) {
    looked_at(store, store_words_count(row) * sizeof(int32_t));
    return (const int32_t *)(store->data + row->offset);
}
