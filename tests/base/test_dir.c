/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: made, listed, removed, built completely or not at all; paths. */
#include "tests/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(dirs_are_made_listed_and_removed) {
    Arena *arena = arena_new(0);
    check_ok(dir_make(temp_file(test_folder, "p/q/r/")));
    check_ok(dir_make(temp_file(test_folder, "p/q/r")));
    temp_text(test_folder, "p/q/b", "b");
    temp_text(test_folder, "p/q/.hidden", "h");
    temp_text(test_folder, "p/q/a", "a");
    temp_text(test_folder, "outside", "stays");
    assert_int_equal(symlink(temp_file(test_folder, "outside"), temp_file(test_folder, "p/q/link")), 0);
    assert_int_equal(symlink(test_folder, temp_file(test_folder, "p/q/dirlink")), 0);
    char **names;
    size_t count;
    check_ok(dir_list(temp_file(test_folder, "p/q"), arena, &names, &count));
    static const char *const want[] = {".hidden", "a", "b", "dirlink", "link", "r"};
    assert_int_equal(count, COUNT_OF(want));
    for (size_t i = 0; i < count; i++) assert_string_equal(names[i], want[i]);
    check_ok(dir_list(temp_file(test_folder, "p/q/r"), arena, &names, &count));
    assert_int_equal(count, 0);
    check_status(dir_list(temp_file(test_folder, "none"), arena, &names, &count), ST_INPUT);
    check_status(dir_make(temp_file(test_folder, "outside/x")), ST_RESOURCE);
    check_status(dir_make(temp_file(test_folder, "outside")), ST_RESOURCE);
    check_status(dir_check_creatable(temp_file(test_folder, "outside/x/y")), ST_RESOURCE);
    check_ok(dir_check_creatable(temp_file(test_folder, "not/yet/there")));
    check_ok(dir_check_creatable("not-yet-there"));
    check_ok(dir_rename(temp_file(test_folder, "p/q"), temp_file(test_folder, "p/s")));
    assert_true(dir_exists(temp_file(test_folder, "p/s/r")) && !dir_exists(temp_file(test_folder, "p/q")));
    check_status(dir_rename(temp_file(test_folder, "none"), temp_file(test_folder, "p/t")), ST_INPUT);
    check_ok(dir_sync(test_folder));
    check_ok(dir_remove(temp_file(test_folder, "p")));
    assert_false(dir_exists(temp_file(test_folder, "p")));
    assert_true(file_exists(temp_file(test_folder, "outside"))); /* links are removed, not followed */
    check_ok(dir_remove(temp_file(test_folder, "p")));
    check_status(dir_remove(temp_file(test_folder, "outside")), ST_INPUT);
    assert_string_equal(path_join(arena, "a", "b"), "a/b");
    assert_string_equal(path_join(arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(arena, "", "b"), "b");
    assert_string_equal(path_join(arena, "a", "/b"), "/b");
    assert_null(path_join(arena, NULL, "b"));
    assert_null(path_join(arena, "a", NULL));
    assert_string_equal(path_name("a/b/c.txt"), "c.txt");
    assert_string_equal(path_name("c.txt"), "c.txt");
    arena_free(arena);
}

static Status fill_folder(void *context, const char *made) {
    const char *text = context;
    temp_text(made, "text", text);
    return strcmp(text, "broken") ? ST_OK : status_hint(status_fail(ST_NUMERIC, "it does not fit"), "make room");
}

TEST(folders_are_built_whole_or_not_at_all) {
    char built[600];
    snprintf(built, sizeof built, "%s/built/folder", test_folder);
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    assert_false(dir_exists(built));
    check_ok(dir_build(temp_file(test_folder, "built/folder//"), fill_folder, "first"));
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    check_text("it does not fit");
    assert_string_equal(status_hint_text(), "make room");
    Str text = {0};
    check_ok(file_read(temp_file(test_folder, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "first");
    check_ok(dir_build(built, fill_folder, "second"));
    str_clear(&text);
    check_ok(file_read(temp_file(test_folder, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "second");
    check_ok(dir_list(temp_file(test_folder, "built"), arena, &names, &count));
    assert_int_equal(count, 1); /* no temporary folder is left */
    assert_int_equal(symlink("built/folder", temp_file(test_folder, "built_link")), 0);
    check_ok(dir_build(temp_file(test_folder, "built_link"), fill_folder, "third"));
    str_clear(&text);
    check_ok(file_read(temp_file(test_folder, "built/folder/text"), 100, &text)); /* what the link leads to is replaced */
    assert_string_equal(str_text(&text), "third");
    assert_int_equal(unlink(temp_file(test_folder, "built_link")), 0);
    check_ok(dir_rename(built, temp_file(test_folder, "built/.folder.tune-old"))); /* a process was killed between its two renames */
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    str_clear(&text);
    check_ok(file_read(temp_file(test_folder, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "third");
    assert_int_equal(symlink("nowhere", temp_file(test_folder, "dangling")), 0);
    check_status(dir_build(temp_file(test_folder, "dangling"), fill_folder, "fourth"), ST_INPUT);
    check_text("the target of the link is missing");
    check_status(dir_build(temp_file(test_folder, "built/folder/text"), fill_folder, "over a file"), ST_RESOURCE);
    assert_true(file_exists(temp_file(test_folder, "built/folder/text")));
    check_status(dir_build(NULL, fill_folder, "nowhere"), ST_RESOURCE);
    str_release(&text);
    arena_free(arena);
}

static int told[2], asked[2]; /* pipes from the building process, and to it */

static Status fill_slowly(void *context, const char *made) {
    char byte = 'x';
    temp_text(made, "first", context);
    if (write(told[1], &byte, 1) != 1 || read(asked[0], &byte, 1) != 1) return status_fail(ST_RESOURCE, "no pipe");
    temp_text(made, "second", context);
    return ST_OK;
}

static void check_whole(const char *built, const char *want) {
    Str text = {0};
    char path[700];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", built, i ? "second" : "first");
        check_ok(file_read(path, 100, &text));
        assert_string_equal(str_text(&text), want);
    }
    str_release(&text);
}

/* The second one is refused as long as the first builds, and neither has files of the other; one that was killed keeps nobody out. */
TEST(two_processes_build_one_folder) {
    char built[600], byte = 'x';
    snprintf(built, sizeof built, "%s/both/folder", test_folder);
    for (int killed = 0; killed < 3; killed++) {
        assert_int_equal(pipe(told), 0);
        assert_int_equal(pipe(asked), 0);
        pid_t child = fork();
        if (child == 0) _exit(dir_build(built, fill_slowly, "child") == ST_OK ? 0 : 1);
        assert_int_equal(read(told[0], &byte, 1), 1);
        check_status(dir_build(built, fill_folder, "parent"), ST_CONFIG);
        check_text("another process is writing");
        int how;
        if (killed == 1) assert_int_equal(kill(child, SIGKILL) == 0 && waitpid(child, &how, 0) == child, 1);
        assert_int_equal(write(asked[1], "xx", 2), 2); /* one for the parent's own turn */
        if (killed != 1) assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, killed == 1 ? SIGKILL : 0);
        check_whole(built, killed == 1 ? "parent" : "child");
        check_ok(dir_build(built, fill_slowly, "parent"));
        check_whole(built, "parent");
        for (int i = 0; i < 2; i++) close(told[i]), close(asked[i]);
    }
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_ok(dir_list(temp_file(test_folder, "both"), arena, &names, &count));
    assert_int_equal(count, 1);
    arena_free(arena);
}

TEST(what_has_no_room_is_not_begun) {
    check_ok(dir_check_space(test_folder, 1));
    check_ok(dir_check_space("/nowhere/at/all", 1));
    check_status(dir_check_space(test_folder, (uint64_t)1 << 62), ST_RESOURCE);
    check_text("not enough disk space");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dirs_are_made_listed_and_removed),
        cmocka_unit_test(folders_are_built_whole_or_not_at_all),
        cmocka_unit_test(two_processes_build_one_folder),
        cmocka_unit_test(what_has_no_room_is_not_begun),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
