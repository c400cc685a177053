/* SPDX-License-Identifier: Apache-2.0 */
/* System calls that a sandboxed program may not make. It is a list of refusals: interpreters and their libraries need most other calls. */
#include "lib/child/sandbox.h"

#include <errno.h>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif
/* Numbers that are the same on every architecture, for headers that lack them. */
enum { IO_URING_SETUP = 425, IO_URING_ENTER, IO_URING_REGISTER, OPEN_TREE = 428, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, FSPICK };
enum { CLONE3 = 435, PIDFD_GETFD = 438, PROCESS_MADVISE = 440, MOUNT_SETATTR = 442, OPEN_TREE_ATTR = 467 };

/* Other processes, keys, mounts, namespaces, the kernel itself; io_uring creates sockets without the filter seeing it. */
static const int refused[] = {
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    PIDFD_GETFD,
    PROCESS_MADVISE,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    OPEN_TREE,
    MOVE_MOUNT,
    FSOPEN,
    FSCONFIG,
    FSMOUNT,
    FSPICK,
    MOUNT_SETATTR,
    OPEN_TREE_ATTR,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_fanotify_init,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_syslog,
    SYS_acct,
    SYS_quotactl,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_vhangup,
    IO_URING_SETUP,
    IO_URING_ENTER,
    IO_URING_REGISTER,
#ifdef __x86_64__
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
#endif
};

#define DATA(field) (uint32_t) offsetof(struct seccomp_data, field)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, DATA(field))
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), yes, no)
#define ANSWER(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)(error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define NEW_SPACES (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/* Arguments are compared by their low halves, which is all that the kernel reads of an int on these architectures. */
static const struct sock_filter head[] = {
    LOAD(arch),
    IF_EQUAL(ARCHITECTURE, 1, 0),
    ANSWER(EPERM), /* 32-bit programs have other numbers */
    LOAD(nr),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
    ANSWER(EPERM), /* so does x32 */
    IF_EQUAL(CLONE3, 0, 1),
    ANSWER(ENOSYS), /* its flags are in memory, where a filter cannot read; the C library then falls back to clone */
    IF_EQUAL(SYS_clone, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_SPACES, 0, 1),
    ANSWER(EPERM),
    ALLOW,
    /* only Internet sockets: Unix sockets, vsock, netlink and others leave the network namespace or talk to the kernel */
    IF_EQUAL(SYS_socket, 0, 5),
    LOAD(args[0]),
    IF_EQUAL(AF_INET, 1, 0),
    IF_EQUAL(AF_INET6, 0, 1),
    ALLOW,
    ANSWER(EPERM),
    /* socket pairs for the program itself; a datagram pair could send to any name */
    IF_EQUAL(SYS_socketpair, 0, 6),
    LOAD(args[1]),
    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf),
    IF_EQUAL(SOCK_STREAM, 1, 0),
    IF_EQUAL(SOCK_SEQPACKET, 0, 1),
    ALLOW,
    ANSWER(EPERM),
};

int filter_enter(void) {
    struct sock_filter code[COUNT_OF(head) + 2 * COUNT_OF(refused) + 1];
    size_t n = 0;
    for (; n < COUNT_OF(head); n++) code[n] = head[n];
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        code[n++] = (struct sock_filter)IF_EQUAL(refused[i], 0, 1);
        code[n++] = (struct sock_filter)ANSWER(EPERM);
    }
    code[n++] = (struct sock_filter)ALLOW;
    struct sock_fprog program = {(unsigned short)n, code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0 ? 0 : errno;
}

#else
int filter_enter(void) { return ENOSYS; }
#endif
