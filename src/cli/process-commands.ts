/** Rows of the command table that act on processes and files in a capsule. */
import type { Commands } from "./command.ts";

const processes = () => import("./processes.ts");

/** Every start of a command and of a terminal takes these. */
export const commandOptions = {
  user: { value: "USER", short: "u", meaning: "user to run as, a name or a number; default: root" },
  env: { value: "NAME=VALUE", short: "e", isList: true, meaning: "set an environment variable" },
  cwd: { value: "DIR", short: "w", meaning: "working directory; default: the user's home directory" },
} as const;

export const startCommands: Commands = {
  exec: {
    usage: "[-i] [-t] [-u USER] [-e NAME=VALUE]… [-w DIR] [--timeout SEC] [--background [--tag TAG]] ID -- CMD [ARG…]",
    meaning: "run a command in a capsule, with its input, output and exit code",
    details:
      "The command is run without a shell; for pipes and redirections: exec ID -- sh -c '…'. " +
      "The first Ctrl-C sends SIGTERM to the command, the second one kills it. " +
      "Exit codes: the command's own; 124 when --timeout ran out; 125 when the service did not run the command; 127 " +
      "when there is no such command, or it cannot be executed. Standard input is passed on where it is no terminal, or " +
      "with -i. Like ssh, exec in a loop reads the loop's own input: while read ID; do capsule exec $ID -- CMD " +
      "</dev/null; done <list. -it runs a program that needs a terminal; -t alone passes no keys on.",
    options: {
      interactive: { short: "i", meaning: "pass standard input on from a terminal, too" },
      tty: { short: "t", meaning: "run the command in a terminal; the end of piped input is Ctrl-D" },
      ...commandOptions,
      timeout: { value: "SEC", meaning: "kill the command after SEC seconds; default: 0, never" },
      background: { short: "b", meaning: "leave the command running, and print its tag" },
      tag: { value: "TAG", meaning: "with --background: name of the process; default: a generated one" },
    },
    words: [1, 1],
    rest: "after-word",
    passesExitCode: true,
    completes: "capsule",
    examples: [
      ["capsule exec ID -- python3 -c 'print(6*7)'", "a program with its arguments"],
      ["capsule exec ID -- sh -c 'ls | wc -l'", "a line for the shell"],
      ["capsule exec ID -- tar x -C /work <work.tar", "standard input from a file or a pipe"],
      ["capsule exec -it ID -- top", "a program that needs a terminal"],
      ["capsule exec -u nobody -w /tmp ID -- id", "as another user, in another directory"],
      ["capsule exec --background --tag job ID -- sh -c 'make > make.log 2>&1'", "in the background, with a name"],
    ],
    load: async () => (await import("./exec.ts")).exec,
  },
  shell: {
    usage: "[--tag TAG] [-u USER] [-e NAME=VALUE]… [-w DIR] ID [-- CMD [ARG…]]",
    meaning: "open a terminal in a capsule",
    details:
      "Ctrl-] d detaches: the session goes on, and the command that joins it again is printed. Ctrl-] Ctrl-] types " +
      "Ctrl-]. A broken connection is made again automatically. Exit code: that of the session's command. " +
      "Typing does not count as activity: a capsule with an inactivity time is paused all the same.",
    options: {
      tag: { value: "TAG", meaning: "join the session with this tag, or begin one of that name" },
      ...commandOptions,
    },
    words: [1, 1],
    rest: "after-dashes",
    passesExitCode: true,
    completes: "capsule",
    examples: [
      ["capsule shell ID", "bash"],
      ["capsule shell ID -- python3", "another program"],
      ["capsule shell ID --tag pty-0a1b2c3d", "a session that was detached by Ctrl-] d"],
      ["capsule shell ID --tag work", "the session work, begun if there is none"],
    ],
    load: async () => (await import("./shell.ts")).shell,
  },
};

export const processCommands: Commands = {
  cp: {
    usage: "[--quiet] SRC… ID:DST | ID:SRC… DST",
    meaning: "copy files and folders in or out; - is standard input or output",
    details:
      "Folders are copied recursively, with modes, also setgid and sticky of folders; links stay links. Several sources go " +
      "into a folder, and have different names. ID is an id, a prefix of one or a name; a file here whose name has a colon is " +
      "./a:b. A relative path in a capsule starts at the home directory. Nothing is written outside of DST, whatever file " +
      "names the capsule reports.",
    options: {
      quiet: { short: "q", meaning: "show no progress" },
      recursive: { short: "r", meaning: "as without it: folders are copied with all in them" },
    },
    words: [2, 1_000],
    completes: "path",
    examples: [
      ["capsule cp src ID:/work/", "a folder, into another"],
      ["capsule cp ID:/work/out.csv .", "a file, out"],
      ["capsule cp -r src test ID:/work", "several, into a folder"],
      ["tar c . | capsule cp - ID:/work/all.tar", "standard input"],
      ["capsule cp ID:/var/log/app.log - | less", "standard output"],
    ],
    load: async () => (await import("./copy.ts")).cp,
  },
  ps: {
    usage: "ID",
    meaning: "list the processes in a capsule",
    details:
      "A process that has ended is not listed. For five minutes capsule logs prints what one with a tag has written, and with -f " +
      "its exit code.",
    options: {},
    words: [1, 1],
    completes: "capsule",
    examples: [["capsule ps ID", "every process, with its user, and its tag if the service started it"]],
    load: async () => (await processes()).ps,
  },
  kill: {
    usage: "[--signal KILL|TERM] ID PID|TAG",
    meaning: "end a process and its children",
    options: { signal: { value: "NAME", short: "s", meaning: "KILL (the default) or TERM" } },
    words: [2, 2],
    completes: "capsule",
    examples: [["capsule kill --signal TERM ID web", "SIGTERM instead of SIGKILL"]],
    load: async () => (await processes()).kill,
  },
  logs: {
    usage: "[--follow] [--tail N] ID PID|TAG",
    meaning: "print what a background process has written",
    details:
      "Both streams go to standard output, in the order in which they were written. The last 1 MiB is kept, until five " +
      "minutes after the end of the process. With -f, Ctrl-C leaves the process running.",
    options: {
      follow: { short: "f", meaning: "go on with new output, until the process ends" },
      tail: { value: "N", meaning: "only the last N lines of what is kept" },
    },
    words: [2, 2],
    passesExitCode: true,
    completes: "capsule",
    examples: [
      ["capsule logs ID web", "everything that is kept"],
      ["capsule logs -f --tail 10 ID web", "the last ten lines, then what follows"],
    ],
    load: async () => (await processes()).logs,
  },
};
