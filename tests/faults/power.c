/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the state of the disk after a power cut, from the log that journal.c writes.
 *   power LOG BASE OUT CUT STATE
 * makes the folder OUT as it may be if the power is cut before operation CUT (from 1). BASE is the folder before the first operation. STATE:
 *   ext4-lost    names at the time of the cut, and the synced bytes of each file: as ext4 with data=ordered and delayed allocation
 *   ext4-half    the same, and half of the bytes that were written after the last sync
 *   ext4-zero    the same, and all of these bytes as zeros
 *   ext4-early   names at the time of the last sync of any file, which writes the journal; the synced bytes of each file
 *   posix-none   names at the time when their folder was synced, and the synced bytes of each file: the minimum that POSIX guarantees
 *   posix-some   the same, and a part of all changes that were not synced
 *   count        prints the number of operations */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Bytes {
    char *data;
    size_t size;
} Bytes;

typedef struct Node Node;
typedef struct Entry {
    char name[256];
    Node *now, *disk; /* the file of this name for programs, and after a power cut; NULL: none */
} Entry;
/* A file or a folder, which may have several names. */
struct Node {
    bool folder;
    Bytes now, synced;
    Entry *entries;
    size_t n_entries;
};

enum { OPENED = 1 << 16 };
static Node *opened[OPENED];
static Node root = {.folder = true};
static const char *state;

static void fail(const char *what, const char *which) {
    fprintf(stderr, "power: %s: %s\n", what, which);
    exit(1);
}

static void *grow(void *block, size_t size) {
    void *grown = realloc(block, size ? size : 1);
    if (!grown) fail("no memory", "");
    return grown;
}

static void set_size(Bytes *bytes, size_t size) {
    bytes->data = grow(bytes->data, size);
    if (size > bytes->size) memset(bytes->data + bytes->size, 0, size - bytes->size);
    bytes->size = size;
}

static void copy(Bytes *to, const Bytes *from) {
    set_size(to, from->size);
    if (from->size > 0) memcpy(to->data, from->data, from->size);
}

/* ---- names ---- */

static Entry *entry(Node *folder, const char *name) {
    for (size_t i = 0; i < folder->n_entries; i++)
        if (strcmp(folder->entries[i].name, name) == 0) return &folder->entries[i];
    folder->entries = grow(folder->entries, (folder->n_entries + 1) * sizeof *folder->entries);
    Entry *made = &folder->entries[folder->n_entries++];
    *made = (Entry){.now = NULL};
    if (strlen(name) >= sizeof made->name) fail("name too long", name);
    strcpy(made->name, name);
    return made;
}

/* The entry that `path` names; NULL for the root. */
static Entry *find(const char *path) {
    char part[256];
    Node *folder = &root;
    Entry *found = NULL;
    for (const char *at = path; *at;) {
        size_t len = strcspn(at, "/");
        if (len > 0) {
            snprintf(part, sizeof part, "%.*s", (int)len, at);
            if (found) folder = found->now;
            if (!folder || !folder->folder) fail("no folder on the way", path);
            found = entry(folder, part);
        }
        at += len + (at[len] == '/');
    }
    return found;
}

static Node *make(bool folder) {
    Node *node = grow(NULL, sizeof *node);
    *node = (Node){.folder = folder};
    return node;
}

static void settle(Node *folder) { /* marks the names of one folder as being on the disk */
    for (size_t i = 0; i < folder->n_entries; i++) folder->entries[i].disk = folder->entries[i].now;
}

static void settle_all(Node *folder) { /* the same for all folders below it */
    settle(folder);
    for (size_t i = 0; i < folder->n_entries; i++)
        if (folder->entries[i].now && folder->entries[i].now->folder) settle_all(folder->entries[i].now);
}

/* ---- the state before the first operation ---- */

static void load_file(const char *path, Node *node) {
    char chunk[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot read", path);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, file)) > 0;) {
        size_t at = node->now.size;
        set_size(&node->now, at + n);
        memcpy(node->now.data + at, chunk, n);
    }
    fclose(file);
    copy(&node->synced, &node->now);
}

static void load(const char *path, Node *folder) {
    DIR *dir = opendir(path);
    if (!dir) fail("cannot read", path);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char below[4096];
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (lstat(below, &info) != 0) fail("cannot read", below);
        Node *node = entry(folder, e->d_name)->now = make(S_ISDIR(info.st_mode));
        if (node->folder) load(below, node);
        if (S_ISREG(info.st_mode)) load_file(below, node);
    }
    closedir(dir);
}

/* ---- the operations of the log ---- */

static void apply_open(char *text) {
    int number = 0, begin = 0;
    char made[8], cut[8];
    if (sscanf(text, "%d %7s %7s %n", &number, made, cut, &begin) < 3 || number <= 0 || number >= OPENED) fail("cannot read the log", text);
    text += begin;
    Entry *e = find(text);
    if (e && !e->now) e->now = make(false);
    opened[number] = e ? e->now : &root;
    if (strcmp(cut, "cut") == 0) set_size(&opened[number]->now, 0);
}

static void apply_write(const char *text, FILE *log) {
    int number;
    size_t at, size;
    if (sscanf(text, "%d %zu %zu", &number, &at, &size) != 3) fail("cannot read the log", text);
    Bytes *bytes = &opened[number]->now;
    if (at + size > bytes->size) set_size(bytes, at + size);
    if (fread(bytes->data + at, 1, size, log) != size || fgetc(log) != '\n') fail("the log ends", text);
}

static void apply_sync(int number) {
    Node *node = opened[number];
    copy(&node->synced, &node->now);
    if (strncmp(state, "ext4", 4) == 0) settle_all(&root);
    if (node->folder) settle(node);
}

static void apply_names(const char *what, char *text) {
    char *tab = strchr(text, '\t');
    if (tab) *tab = '\0';
    if (strcmp(what, "mkdir") == 0) find(text)->now = make(true);
    if (strcmp(what, "remove") == 0) find(text)->now = NULL;
    if (!tab) return;
    Node *node = find(text)->now;
    if (strcmp(what, "rename") == 0) find(text)->now = NULL;
    find(tab + 1)->now = node;
}

/* Applies the operations before `cut` and returns the number of all operations. */
static long replay(const char *path, long cut) {
    char line[8192], what[16];
    FILE *log = fopen(path, "rb");
    long n = 0;
    if (!log) fail("cannot read", path);
    for (; n + 1 < cut && fgets(line, sizeof line, log); n++) {
        int begin = 0;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%15s %n", what, &begin) != 1) fail("cannot read the log", line);
        char *rest = line + begin;
        if (strcmp(what, "open") == 0)
            apply_open(rest);
        else if (strcmp(what, "write") == 0)
            apply_write(rest, log);
        else if (strcmp(what, "size") == 0)
            set_size(&opened[atoi(rest)]->now, strtoull(strchr(rest, ' '), NULL, 10));
        else if (strcmp(what, "sync") == 0)
            apply_sync(atoi(rest));
        else
            apply_names(what, rest);
    }
    fclose(log);
    return n;
}

/* ---- the state after the cut ---- */

static unsigned chance = 1; /* state of the fixed pseudo-random choices of posix-some */
static unsigned choose(unsigned n) {
    chance = chance * 1103515245u + 12345u;
    return (chance >> 16) % n;
}

static Bytes left_of(const Node *node) {
    Bytes left = {0};
    copy(&left, &node->synced);
    unsigned how = strcmp(state, "ext4-half") == 0 ? 1 : strcmp(state, "ext4-zero") == 0 ? 2 : strcmp(state, "posix-some") == 0 ? choose(4) : 0;
    if (how == 0 || node->now.size <= left.size) return left;
    size_t more = node->now.size - left.size, kept = left.size;
    set_size(&left, how == 1 ? kept + more / 2 : node->now.size);
    if (how != 2) memcpy(left.data + kept, node->now.data + kept, left.size - kept);
    return left;
}

static void store(const char *path, const Node *node);

static void store_folder(const char *path, const Node *folder) {
    if (mkdir(path, 0777) != 0) fail("cannot make", path);
    for (size_t i = 0; i < folder->n_entries; i++) {
        const Entry *e = &folder->entries[i];
        char below[4096];
        snprintf(below, sizeof below, "%s/%s", path, e->name);
        const Node *node = strcmp(state, "posix-some") == 0 && choose(2) ? e->now : e->disk;
        if (node) store(below, node);
    }
}

static void store(const char *path, const Node *node) {
    if (node->folder) {
        store_folder(path, node);
        return;
    }
    Bytes left = left_of(node);
    FILE *file = fopen(path, "wb");
    if (!file || (left.size > 0 && fwrite(left.data, 1, left.size, file) != left.size) || fclose(file) != 0) fail("cannot write", path);
    free(left.data);
}

int main(int argc, char **argv) {
    if (argc != 6) fail("expected", "LOG BASE OUT CUT STATE");
    long cut = strtol(argv[4], NULL, 10);
    state = argv[5];
    load(argv[2], &root);
    settle_all(&root);
    if (strcmp(state, "count") == 0) {
        printf("%ld\n", replay(argv[1], 1L << 40));
        return 0;
    }
    chance = (unsigned)cut;
    replay(argv[1], cut);
    if (strcmp(state, "ext4-early") != 0 && strncmp(state, "ext4", 4) == 0) settle_all(&root);
    store(argv[3], &root);
    return 0;
}
