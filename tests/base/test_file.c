/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapped, truncated and written by other processes, read in lines, written completely or not at all, on full disks. */
#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#ifdef __linux__
#include <sched.h>
#include <sys/mount.h>
#endif

static void write_gz(const char *path, const char *bytes, size_t len) {
    gzFile gz = gzopen(path, "wb");
    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, bytes, (unsigned)len), len);
    assert_int_equal(gzclose(gz), Z_OK);
}

static void file_note(void *context, LogLevel level, const char *text) { str_printf(context, "%d %s;", (int)level, text); }

/* Another program cuts a file that is mapped here. */
TEST(mapped_files_may_be_cut) {
    enum { SIZE = 3 << 16 };
    static char bytes[SIZE];
    memset(bytes, 'x', sizeof bytes);
    const char *path = temp_file(test_folder, "cut.bin");
    file_handle_truncation();
    for (int round = 0; round < 2; round++) {
        Mapping mapping;
        check_ok(file_write_all(path, bytes, SIZE));
        check_ok(file_map(path, &mapping));
        check_ok(file_check_truncation());
        assert_int_equal(truncate(path, SIZE / 3), 0);
        assert_int_equal(mapping.data[SIZE / 3 - 1], 'x');
        check_ok(file_check_truncation()); /* an unmapped file is not checked */
        assert_int_equal(mapping.data[SIZE / 2], 0);
        assert_int_equal(mapping.data[SIZE - 1], 0);
        check_status(file_check_truncation(), ST_INPUT);
        check_text("cut.bin' was truncated by another program while it was in use");
        if (round == 0) {
            assert_true(file_ignore_truncation(&mapping) && !file_ignore_truncation(&mapping));
            check_ok(file_check_truncation());
        }
        file_unmap(&mapping);
    }
    check_status(file_check_truncation(), ST_INPUT); /* the second one, after it was unmapped */
}

/* It writes other bytes of the same number into one, or puts a new file in the place of one. */
TEST(mapped_files_may_be_written_to) {
    const char *path = temp_text(test_folder, "watched.bin", "before");
    Mapping mapping, other;
    check_ok(file_map(path, &mapping));
    check_ok(file_map(temp_text(test_folder, "replaced.bin", "before"), &other));
    file_watch_truncation(&mapping);
    file_watch_truncation(&other);
    Str words = {0};
    log_set_sink(file_note, &words, LOG_WARNING);
    check_ok(file_write_all(temp_file(test_folder, "replaced.bin"), "after", 5)); /* renamed over it: what is mapped stays */
    check_ok(file_check_truncation());
    assert_int_equal(words.len, 0);
    struct timespec later[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    int fd = open(path, O_WRONLY);
    assert_int_equal(write(fd, "behind", 6), 6);
    assert_int_equal(futimens(fd, later), 0); /* a coarse clock may not have moved on */
    close(fd);
    for (int asked = 0; asked < 2; asked++) {
        check_ok(file_check_truncation());
        assert_non_null(strstr(str_text(&words), "watched.bin' was written to by another program"));
    }
    log_set_sink(NULL, NULL, LOG_WARNING);
    const char *last = strstr(str_text(&words), "written to");
    assert_null(strstr(last + 1, "written to")); /* said once */
    str_release(&words);
    file_unmap(&mapping);
    file_unmap(&other);
}

TEST(files_are_mapped_and_read) {
    Mapping mapping;
    check_ok(file_map(temp_text(test_folder, "a.txt", "hello"), &mapping));
    assert_int_equal(mapping.size, 5);
    assert_memory_equal(mapping.data, "hello", 5);
    file_unmap(&mapping);
    check_ok(file_map(temp_text(test_folder, "empty", ""), &mapping));
    assert_true(mapping.size == 0 && !mapping.data);
    file_unmap(&mapping);
    check_status(file_map(temp_file(test_folder, "missing"), &mapping), ST_INPUT);
    check_text("missing': No such file");
    check_status(file_map(test_folder, &mapping), ST_INPUT);
    assert_int_equal(mkfifo(temp_file(test_folder, "pipe"), 0600), 0);
    check_status(file_map(temp_file(test_folder, "pipe"), &mapping), ST_INPUT); /* at once, and nobody writes to it */
    check_text("not a regular file");
    assert_true(file_exists(temp_file(test_folder, "a.txt")) && !file_exists(test_folder) && dir_exists(test_folder) &&
                !dir_exists(temp_file(test_folder, "a.txt")));
    Str text = {0};
    check_ok(file_read(temp_file(test_folder, "a.txt"), 5, &text));
    assert_string_equal(str_text(&text), "hello");
    check_status(file_read(temp_file(test_folder, "a.txt"), 4, &text), ST_INPUT);
    check_text("longer than 4 B");
    write_gz(temp_file(test_folder, "a.gz"), "packed", 6);
    check_ok(file_read(temp_file(test_folder, "a.gz"), 100, &text));
    assert_string_equal(str_text(&text), "packed");
    check_ok(file_read(temp_file(test_folder, "empty"), 100, &text));
    assert_int_equal(text.len, 0);
    check_status(file_read(test_folder, 100, &text), ST_INPUT);
    check_status(file_read(temp_file(test_folder, "missing"), 100, &text), ST_INPUT);
    str_release(&text);
    char out[512];
    assert_false(shared_path("no such thing", out, sizeof out));
}

TEST(lines_of_every_length) {
    Str text = {0};
    static const size_t lengths[] = {0, 1, 5, 300000, 0, 262143, 262144, 1000000, 3};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t j = 0; j < lengths[i]; j++) str_append_char(&text, (char)('a' + (i + j) % 26));
        str_append(&text, i % 2 ? "\r\n" : "\n");
    }
    str_append(&text, "last");
    check_ok(file_write_all(temp_file(test_folder, "lines"), text.data, text.len));
    write_gz(temp_file(test_folder, "lines.gz"), text.data, text.len);
    for (int packed = 0; packed < 2; packed++) {
        Lines lines;
        Slice line;
        check_ok(lines_open(&lines, temp_file(test_folder, packed ? "lines.gz" : "lines")));
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            assert_true(lines_next(&lines, &line));
            assert_int_equal(line.len, lengths[i]);
            assert_int_equal(lines.number, i + 1);
            for (size_t j = 0; j < line.len; j++) assert_int_equal(line.data[j], 'a' + (i + j) % 26);
        }
        assert_true(lines_next(&lines, &line) && slice_is(line, "last"));
        assert_false(lines_next(&lines, &line));
        assert_false(lines_next(&lines, &line));
        check_ok(lines_close(&lines));
    }
    Mapping packed;
    check_ok(file_map(temp_file(test_folder, "lines.gz"), &packed));
    check_ok(file_write_all(temp_file(test_folder, "cut.gz"), packed.data, packed.size - 20));
    file_unmap(&packed);
    Lines lines;
    Slice line;
    check_ok(lines_open(&lines, temp_file(test_folder, "cut.gz")));
    while (lines_next(&lines, &line)) assert_true(lines.number < COUNT_OF(lengths) + 1);
    check_status(lines_close(&lines), ST_INPUT);
    check_text("cut.gz' after line");
    Str out = {0};
    check_status(file_read(temp_file(test_folder, "cut.gz"), 1 << 30, &out), ST_INPUT);
    check_status(lines_open(&lines, temp_file(test_folder, "missing")), ST_INPUT);
    check_ok(lines_close(&lines));
    check_status(lines_open(&lines, test_folder), ST_INPUT);
    check_ok(lines_open(&lines, temp_text(test_folder, "empty", "")));
    assert_false(lines_next(&lines, &line));
    check_ok(lines_close(&lines));
    str_release(&out);
    str_release(&text);
}

#if !defined(SANITIZED) && defined(__linux__)
static void read_without_memory(void) {
    Lines lines;
    Slice line;
    FILE *file = fopen(temp_file(test_folder, "endless"), "w"); /* a line of 1 GiB, most of it a hole */
    if (!file || fputs("short\n", file) < 0 || ftruncate(fileno(file), (off_t)1 << 30) != 0 || fclose(file) != 0) _exit(1);
    unsigned long pages = 0;
    FILE *mapped = fopen("/proc/self/statm", "r");
    if (!mapped || fscanf(mapped, "%lu", &pages) != 1 || fclose(mapped) != 0) _exit(1);
    struct rlimit limit = {0};
    limit.rlim_cur = limit.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)1 << 28);
    if (lines_open(&lines, temp_file(test_folder, "endless")) != ST_OK || setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    if (!lines_next(&lines, &line) || lines_next(&lines, &line)) _exit(3);
    if (lines_close(&lines) != ST_RESOURCE || !strstr(status_text(), "out of memory for line 2 of")) _exit(4);
}

TEST(a_line_without_memory_is_no_fault_of_the_file) {
    int result = in_child(read_without_memory);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}
#endif

static size_t count_names(const char *path) {
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_ok(dir_list(path, arena, &names, &count));
    arena_free(arena);
    return count;
}

TEST(written_files_appear_whole) {
    const char *folder = temp_file(test_folder, "w"), *path = temp_file(test_folder, "w/out.bin");
    check_ok(dir_make(folder));
    FileWriter writer;
    check_ok(writer_open(&writer, path));
    static uint8_t big[700000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (uint8_t)(i * 7);
    writer_write(&writer, big, 100);
    writer_write(&writer, big + 100, sizeof big - 100);
    writer_printf(&writer, "%s=%d", "x", 5);
    assert_int_equal(writer.written, sizeof big + 3);
    assert_int_equal(writer.crc, crc32(crc32(0, big, sizeof big), (const uint8_t *)"x=5", 3));
    assert_false(file_exists(path));
    check_contains(writer.temporary, "/w/.out.bin.tmp-");
    check_ok(writer_commit(&writer));
    writer_abandon(&writer);
    Mapping mapping;
    check_ok(file_map(path, &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    assert_memory_equal(mapping.data, big, sizeof big);
    file_unmap(&mapping);
    check_ok(writer_open(&writer, path)); /* a change of mind leaves the old one */
    writer_write(&writer, "new", 3);
    FileWriter second; /* the same file by another name */
    check_status(writer_open(&second, temp_file(test_folder, "w/./out.bin")), ST_CONFIG);
    check_text("two results would be written to");
    writer_abandon(&second);
    assert_true(file_exists(writer.temporary));
    writer_abandon(&writer);
    check_ok(file_map(path, &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    file_unmap(&mapping);
    assert_int_equal(count_names(folder), 1);
    check_status(writer_open(&writer, folder), ST_INPUT);
    check_text("it is a folder");
    check_status(writer_open(&writer, "/dev/null"), ST_INPUT);
    check_status(file_write_all(temp_file(test_folder, "missing/x"), "x", 1), ST_INPUT);
    check_status(writer_commit(&writer), ST_INPUT);
    check_ok(file_copy(path, temp_file(folder, "copy")));
    check_ok(file_map(temp_file(folder, "copy"), &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    file_unmap(&mapping);
    check_status(file_copy(temp_file(test_folder, "missing"), path), ST_INPUT);
    check_status(file_copy(path, folder), ST_INPUT);
}

/* Network and FUSE file systems end any call by a signal. */
static int interruptions;
int fsync(int fd) {
    (void)fd;
    if (interruptions-- > 0) {
        errno = EINTR;
        return -1;
    }
    return 0;
}

TEST(an_interrupted_call_is_made_again) {
    interruptions = 2;
    check_ok(file_write_all(temp_file(test_folder, "interrupted"), "whole", 5));
    assert_true(interruptions < 0);
    interruptions = 2;
    check_ok(dir_sync(test_folder));
    check_ok(file_truncate(temp_file(test_folder, "interrupted"), 2));
    interruptions = 0;
}

/* A disk that does not say whether a file is there has not said that it is missing. */
static const char *silent;
int stat(const char *path, struct stat *info) {
    if (!silent || !strstr(path, silent)) return fstatat(AT_FDCWD, path, info, 0);
    errno = EIO;
    return -1;
}

TEST(no_answer_is_no_no) {
    const char *lines = temp_text(test_folder, "lines", "one two"), *result = temp_file(test_folder, "follows");
    assert_false(file_exists(temp_file(test_folder, "missing")));
    check_ok(memory_check(ST_OK));
    silent = "model";
    assert_false(file_exists("a model"));
    assert_false(dir_exists("another model"));
    silent = NULL;
    check_status(memory_check(ST_INPUT), ST_RESOURCE); /* what was said to be wrong follows from it */
    check_text("cannot look for 'a model': Input/output error");
    check_status(file_write_all(result, "x", 1), ST_RESOURCE);
    check_text("Input/output error");
    check_status(file_append(lines, "x", 1), ST_RESOURCE);
    check_status(file_truncate(lines, 0), ST_RESOURCE);
    check_status(dir_remove(test_folder), ST_RESOURCE);
    assert_false(file_exists(result));
    memory_clear_failure();
    check_ok(file_truncate(lines, 3));
    check_ok(file_write_all(result, "x", 1));
}

static mode_t mode_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? info.st_mode & 0777 : 0;
}

/* What is replaced keeps its mode; what a writer left that was killed goes with the next one of that name, not what one is writing now. */
TEST(what_is_replaced_leaves_nothing_but_its_mode) {
    const char *folder = temp_file(test_folder, "replaced"), *path = temp_file(test_folder, "replaced/rows");
    check_ok(dir_make(folder));
    temp_text(folder, "rows", "old");
    assert_int_equal(chmod(path, 0600), 0);
    temp_text(folder, ".rows.tmp-999999", "left by a kill");
    temp_text(folder, ".rows.tmp-1x", "another's");
    const char *busy = temp_text(folder, ".rows.tmp-999998", "written now");
    int fd = open(busy, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    check_ok(file_write_all(path, "new", 3));
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(count_names(folder), 3);
    close(fd);
    check_ok(file_write_all(path, "newer", 5));
    assert_int_equal(count_names(folder), 2);
}

TEST(what_grows_is_not_written_through_a_link) {
    const char *link = temp_file(test_folder, "a_link");
    assert_int_equal(symlink("what_it_leads_to", link), 0);
    check_status(file_append(link, "x", 1), ST_RESOURCE);
    check_text("it is a link");
    temp_text(test_folder, "what_it_leads_to", "whole");
    check_status(file_append(link, "x", 1), ST_RESOURCE);
    check_status(file_truncate(link, 1), ST_RESOURCE);
    check_text("it is a link");
}

TEST(files_grow_and_shrink) {
    const char *path = temp_file(test_folder, "metrics");
    check_ok(file_append(path, "one\n", 4));
    check_ok(file_append(path, "two\n", 4));
    check_status(file_truncate(path, 9), ST_INPUT);
    check_ok(file_truncate(path, 4));
    Str text = {0};
    check_ok(file_read(path, 100, &text));
    assert_string_equal(str_text(&text), "one\n");
    str_release(&text);
    check_status(file_truncate(temp_file(test_folder, "missing"), 0), ST_INPUT);
    check_status(file_append(test_folder, "x", 1), ST_RESOURCE);
}

/* A file size limit replaces a full disk: it takes the same path through the code. */
static void with_a_full_disk(void) {
    struct rlimit limit = {100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    const char *path = temp_file(test_folder, "full/model"), *log = temp_file(test_folder, "full/log");
    static char big[300000];
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    if (file_write_all(path, big, sizeof big) != ST_RESOURCE || !strstr(status_text(), "model") || !status_hint_text()[0]) _exit(2);
    FileWriter writer;
    if (writer_open(&writer, path) != ST_OK) _exit(3);
    for (int i = 0; i < 3000; i++) writer_write(&writer, big, 100);
    (void)status_fail(ST_INPUT, "something else");
    if (writer_commit(&writer) != ST_RESOURCE || !strstr(status_text(), "model")) _exit(4);
    if (file_append(log, big, sizeof big) != ST_RESOURCE) _exit(5);
    if (file_copy(temp_file(test_folder, "full/large"), path) != ST_RESOURCE) _exit(6);
}

TEST(a_full_disk_loses_nothing) {
    static const char large[200000];
    check_ok(dir_make(temp_file(test_folder, "full")));
    temp_text(test_folder, "full/model", "old");
    temp_text(test_folder, "full/log", "old\n");
    check_ok(file_write_all(temp_file(test_folder, "full/large"), large, sizeof large));
    int result = in_child(with_a_full_disk);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    Str text = {0};
    check_ok(file_read(temp_file(test_folder, "full/model"), 100, &text));
    assert_string_equal(str_text(&text), "old");
    check_ok(file_read(temp_file(test_folder, "full/log"), 100, &text));
    assert_string_equal(str_text(&text), "old\n");
    assert_int_equal(count_names(temp_file(test_folder, "full")), 3);
    str_release(&text);
}

#ifdef __linux__
/* A file system of 128 KiB that only the child sees. Exit code 77: this user may not mount one. */
static void on_a_tiny_disk(void) {
    static char big[300000];
    const char *disk = temp_file(test_folder, "disk"), *path = temp_file(test_folder, "disk/model"), *log = temp_file(test_folder, "disk/log");
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(77);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=128k") != 0) _exit(77);
    if (file_write_all(path, "old", 3) != ST_OK || file_append(log, "old\n", 4) != ST_OK) _exit(1);
    if (file_write_all(path, big, sizeof big) != ST_RESOURCE || !strstr(status_text(), "No space left")) _exit(2);
    if (file_append(log, big, sizeof big) != ST_RESOURCE) _exit(3);
    Mapping kept;
    if (file_map(path, &kept) != ST_OK || kept.size != 3) _exit(4);
    file_unmap(&kept);
    if (file_map(log, &kept) != ST_OK || kept.size != 4) _exit(5);
    file_unmap(&kept);
    if (count_names(disk) != 2) _exit(6);
}

TEST(a_tiny_disk_loses_nothing) {
    check_ok(dir_make(temp_file(test_folder, "disk")));
    int result = in_child(on_a_tiny_disk);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77) skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}
#endif

#ifdef __linux__
/* The library's calls of close come here: after it was closed, a file may turn out not to be kept. */
static bool close_fails;
int close(int fd) {
    long result = syscall(SYS_close, fd);
    if (!close_fails || result != 0) return (int)result;
    close_fails = false;
    errno = EIO;
    return -1;
}

/* The caller appends the line again, so it must not be there twice. */
TEST(an_append_that_fails_at_its_end_leaves_nothing) {
    const char *path = temp_file(test_folder, "appended.jsonl");
    Str text = {0};
    check_ok(file_append(path, "one\n", 4));
    close_fails = true;
    assert_int_equal(file_append(path, "two\n", 4), ST_RESOURCE);
    assert_false(close_fails);
    check_ok(file_append(path, "two\n", 4));
    check_ok(file_read(path, 100, &text));
    assert_string_equal(str_text(&text), "one\ntwo\n");
    str_release(&text);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_mapped_and_read),
        cmocka_unit_test(mapped_files_may_be_written_to),
        cmocka_unit_test(lines_of_every_length),
#if !defined(SANITIZED) && defined(__linux__)
        cmocka_unit_test(a_line_without_memory_is_no_fault_of_the_file),
#endif
        cmocka_unit_test(written_files_appear_whole),
        cmocka_unit_test(files_grow_and_shrink),
        cmocka_unit_test(a_full_disk_loses_nothing),
#ifdef __linux__
        cmocka_unit_test(a_tiny_disk_loses_nothing),
#endif
        cmocka_unit_test(mapped_files_may_be_cut), /* last: this program trusts its files no more */
        cmocka_unit_test(an_interrupted_call_is_made_again),
        cmocka_unit_test(no_answer_is_no_no),
        cmocka_unit_test(what_is_replaced_leaves_nothing_but_its_mode),
        cmocka_unit_test(what_grows_is_not_written_through_a_link),
#ifdef __linux__
        cmocka_unit_test(an_append_that_fails_at_its_end_leaves_nothing),
#endif
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
