/* SPDX-License-Identifier: Apache-2.0 */
#include "data/synth/synth_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Slot {
    const char *line;
    size_t len;
} Slot; /* line NULL: an empty slot */
struct Journal {
    char *path;
    Mapping file;
    size_t size;       /* length of its complete lines */
    Slot *slots;       /* by key */
    size_t n_slots, n; /* n_slots: a power of two */
};

static const char before_key[] = "{\"key\":\"";
static const char *key_of(const char *line) { return line + sizeof before_key - 1; }

static bool is_line(const char *line, size_t len) {
    size_t head = sizeof before_key - 1;
    return len > head + JOURNAL_KEY + 2 && memcmp(line, before_key, head) == 0 && line[head + JOURNAL_KEY] == '"' && line[len - 1] == '}';
}

/* The slot of the line with this key, or the free slot for it. */
static size_t place_of(const Journal *journal, const char *key) {
    size_t place = 5381;
    for (size_t i = 0; i < JOURNAL_KEY; i++) place = place * 33 + (unsigned char)key[i];
    place &= journal->n_slots - 1;
    while (journal->slots[place].line && memcmp(key_of(journal->slots[place].line), key, JOURNAL_KEY) != 0)
        place = (place + 1) & (journal->n_slots - 1);
    return place;
}

static Status index_lines(Journal *journal) {
    const char *at = (const char *)journal->file.data, *end = at + journal->size;
    size_t n = 0;
    for (const char *c = at; c < end; c++) n += *c == '\n';
    for (journal->n_slots = 16; journal->n_slots < 2 * n; journal->n_slots *= 2) {}
    journal->slots = calloc(journal->n_slots, sizeof *journal->slots);
    if (!journal->slots) return status_errno(ENOMEM, "cannot read '%s'", journal->path);
    for (size_t number = 1; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)(stop - at);
        if (!is_line(at, len)) {
            status_fail(ST_INPUT, "'%s' line %zu is not an answered request", journal->path, number);
            return status_hint(ST_INPUT, "it is a log that tune data synth writes; it was damaged, or is another file");
        }
        Slot *slot = &journal->slots[place_of(journal, key_of(at))];
        journal->n += slot->line == NULL;
        if (!slot->line) *slot = (Slot){at, len};
        at = stop + 1;
    }
    return ST_OK;
}

/* Text after the last line end, or text that does not begin like a line, was left by a crash. */
static size_t whole_lines(const Mapping *file) {
    size_t size = file->size;
    while (size > 0 && file->data[size - 1] != '\n') size--;
    return size;
}

static Status map(Journal *journal, bool read_only) {
    TRY(file_map(journal->path, &journal->file));
    journal->size = whole_lines(&journal->file);
    /* the part that is cut off is not checked */
    return journal->size == journal->file.size || read_only ? ST_OK : file_truncate(journal->path, journal->size);
}

Status journal_open(const char *path, bool read_only, Journal **out) {
    *out = NULL;
    Journal *journal = calloc(1, sizeof *journal);
    if (!journal || !(journal->path = strdup(path))) {
        free(journal);
        return status_errno(ENOMEM, "cannot open '%s'", path);
    }
    Status status = read_only || file_exists(path) ? map(journal, read_only) : ST_OK;
    if (status == ST_OK) status = index_lines(journal);
    if (status == ST_OK)
        *out = journal;
    else
        journal_close(journal);
    return status;
}

void journal_close(Journal *journal) {
    if (!journal) return;
    file_unmap(&journal->file);
    free(journal->slots);
    free(journal->path);
    free(journal);
}

size_t journal_count(const Journal *journal) { return journal->n; }

Status journal_first(const Journal *journal, json_t **line) {
    const char *text = (const char *)journal->file.data;
    *line = NULL;
    return journal->n ? json_read_text(text, strcspn(text, "\n"), journal->path, line) : ST_OK;
}

Status journal_find(const Journal *journal, const char *key, json_t **line) {
    const Slot *slot = &journal->slots[place_of(journal, key)];
    *line = NULL;
    return slot->line ? json_read_text(slot->line, slot->len, journal->path, line) : ST_OK;
}

Status journal_add(Journal *journal, const char *key, const Str *fields) {
    Str line = {0};
    str_printf(&line, "%s%.*s\",", before_key, JOURNAL_KEY, key);
    str_append_n(&line, str_text(fields) + 1, fields->len - 1);
    str_append_char(&line, '\n');
    Status status = file_append(journal->path, line.data, line.len);
    str_release(&line);
    return status;
}

Status journal_sync(const Journal *journal) {
    int fd = UNTIL_DONE(open(journal->path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot open '%s'", journal->path);
    Status status = file_sync(fd) == 0 || errno == EINVAL ? ST_OK : status_unwritable(errno, "cannot sync '%s'", journal->path);
    close(fd);
    return status == ST_OK ? dir_sync_above(journal->path) : status;
}
