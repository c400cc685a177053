/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapped, read as streams and lines, written whole or not at all; folders and paths. */
#ifndef TUNE_FILE_H
#define TUNE_FILE_H

#include <errno.h>

#include "lib/base/arena.h"
#include "lib/base/str.h"

/* A system call again, as long as a signal interrupts it: a value below 0 with EINTR. Network and FUSE file systems do that to all calls. */
#define UNTIL_DONE(call)                     \
    (__extension__({                         \
        int done_;                           \
        do done_ = (int)(call);              \
        while (done_ < 0 && errno == EINTR); \
        done_;                               \
    }))

/* A path may be NULL, as an arena gives it that was full and has said so: ST_RESOURCE, or false. */

typedef struct Mapping {
    const uint8_t *data;
    size_t size;
} Mapping;
Status file_map(const char *path, Mapping *mapping); /* read-only; an empty file gives size 0 and data NULL. ST_INPUT when missing */
/* ST_INPUT for what begins like the text that Git LFS leaves in the place of a large file; file_map and stream_open ask it. bytes: its first n. */
Status file_check_pointer(const char *path, const void *bytes, size_t n);
void file_unmap(Mapping *mapping);
void file_drop_pages(const Mapping *mapping, size_t begin, size_t end); /* these bytes were read for now: the system may take their memory back */
/* Another program may write to a mapped file. Bytes that it cut off read as zeros from now on, instead of ending this program by SIGBUS; whoever
 * stores or tells a result asks file_check_truncation first: ST_INPUT once such bytes were looked for, until forgiven. */
void file_handle_truncation(void);
Status file_check_truncation(void);
void file_watch_truncation(
    const Mapping *mapping); /* its bytes are looked up as they are needed: file_check_truncation warns, once, when it was written to */
bool file_ignore_truncation(const Mapping *mapping); /* whether this file's bytes were the first that were missed; then they did no harm */
/* stat, lstat, and realpath into memory of the caller's. A failure that does not say whether something is there (EIO, ESTALE, no memory) is kept for
 * memory_check: what follows from it is no result. So are those of file_exists, dir_exists and all that look by them. */
struct stat;
int file_stat(const char *path, struct stat *info);
int file_lstat(const char *path, struct stat *info);
char *path_real(const char *path);
bool file_exists(const char *path);
/* The same where a file may be missing: ST_INPUT for a link that leads nowhere, since whoever made it meant the file to be there. */
Status file_find(const char *path, bool *there);
bool dir_exists(const char *path);
bool same_folder(const char *a, const char *b);              /* by whatever names; false where one is not there */
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
typedef struct Lines {
    ByteStream *stream;
    char *path;
    Str buffer;
    size_t start, number;
    bool ended;
    Status status;
} Lines;
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
/* ST_CONFIG, and the writer is abandoned, where another process is writing a file of this name: for results, which would replace each other. */
Status writer_alone(FileWriter *writer);
void writer_write(FileWriter *writer, const void *bytes, size_t size); /* failures stick and show in commit */
void writer_printf(FileWriter *writer, const char *format, ...) PRINTF_LIKE(2, 3);
Status writer_flush(FileWriter *writer);  /* writes what is held back, and tells the first failure so far */
Status writer_commit(FileWriter *writer); /* flush, fsync, rename, fsync of the folder */
/* Instead of commit, also after a failure: the whole lines that are there so far stay as PATH.partial. Returns their number; 0: there are none, and
 * no file. Records no failure of its own. */
size_t writer_keep_lines(FileWriter *writer);
void writer_abandon(FileWriter *writer);                                 /* removes the temporary; harmless after commit */
Status file_write_all(const char *path, const void *bytes, size_t size); /* the three above in one */
Status file_append(const char *path, const void *bytes, size_t size);    /* adds to the end; a short write is undone and ST_RESOURCE */
Status file_refuse_link(const char *path); /* ST_RESOURCE: files that grow are not written through links; the two around this ask O_NOFOLLOW */
Status file_truncate(const char *path, uint64_t size); /* ST_INPUT when the file is shorter already */
Status file_copy(const char *from, const char *to);    /* atomically */

Status dir_make(const char *path);                   /* with parents; existing is fine. ST_RESOURCE */
Status dir_check_creatable(const char *path);        /* what dir_make would say, as far as can be told without making anything */
Status dir_remove(const char *path);                 /* with all that is in it; missing is fine */
Status dir_rename(const char *from, const char *to); /* and syncs the parent */
Status dir_sync(const char *path);
Status dir_sync_above(const char *path); /* of the folder that holds it: its name is on the disk afterwards */
/* Gives a file or a folder the next free name of PATH.1, PATH.2, ..., durably: nothing that is there is replaced. What a link leads to is renamed,
 * and an empty folder takes its place. *kept: the new name, appended. ST_CONFIG for a folder that the program runs in; else what the system says. */
Status path_backup(const char *path, Str *kept);
bool path_inside(const char *path, const char *dir); /* by whatever names; a folder is inside itself; false where one is not there */
Status dir_sync_tree(const char *path); /* every file and folder below it, and the folder itself: what a power cut leaves is what is there now */
int file_close(int fd);                 /* of what was written: 0, or -1 with errno; a signal's interruption is none, it is closed */
int file_sync(int fd);                  /* fsync, and through the drive's cache where the system can; 0, or -1 with errno */
Status dir_list(const char *path, Arena *arena, char ***names, size_t *count); /* sorted, without . and .. */
/* Makes `dir` of what `write` puts into the folder `made`, hidden beside it: it appears whole, and what was there before goes only then. A failure,
 * which is `write`'s as it said it, or ST_RESOURCE, leaves all as it was. ST_CONFIG: another process builds it now. */
Status dir_build(const char *dir, Status (*write)(void *context, const char *made), void *context);
/* The same, but what was there before is kept: path_backup. *kept stays as it is where there was nothing. */
Status dir_build_with_backup(const char *dir, Status (*write)(void *context, const char *made), void *context, Str *kept);
/* Does `work`, which writes files of `dir` that belong together, while no other process does that, or builds it. ST_CONFIG: one does. */
Status dir_alone(const char *dir, Status (*work)(void *context), void *context);
/* ST_RESOURCE where the disk of this folder has no room for so many bytes; ST_OK where it does not say. */
Status dir_check_space(const char *path, uint64_t bytes);
char *path_join(Arena *arena, const char *dir, const char *name); /* NULL: no memory, or one of them is NULL */
const char *path_name(const char *path);                          /* behind the last slash */

#endif
