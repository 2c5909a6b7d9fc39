/** The client's rows of the command table. */
import { createDefaults } from "../wire/defaults.ts";
import type { Command, Commands } from "./command.ts";
import { serviceCommands } from "./service-commands.ts";

const capsules = () => import("./capsules.ts");
const processes = () => import("./processes.ts");

/** Every start of a command and of a terminal takes these. */
const commandOptions = {
  user: { value: "USER", short: "u", meaning: "user to run as, a name or a number; default: root" },
  env: { value: "NAME=VALUE", short: "e", isList: true, meaning: "set an environment variable" },
  cwd: { value: "DIR", short: "w", meaning: "working directory; default: the user's home directory" },
} as const;

/** `create` and `run` take these. */
const createOptions: Command["options"] = {
  name: { value: "NAME", meaning: "a name that stands for the id; unique in the team" },
  label: { value: "KEY=VALUE", isList: true, meaning: "a note of your own, for ls --label" },
  env: { value: "NAME=VALUE", short: "e", isList: true, meaning: "a variable of every command and terminal in it" },
  vcpus: { value: "N", meaning: "virtual CPUs; default: 1" },
  memory: { value: "SIZE", short: "m", meaning: "memory: MiB, or 512M, 1G; default: 512" },
  disk: { value: "SIZE", meaning: "disk: MiB, or 8G; default, and least: the template's" },
  timeout: { value: "TIME", meaning: "inactivity: time without a command until --on-timeout" },
  "on-timeout": { value: "ACTION", meaning: "what inactivity does: pause (the default) or destroy" },
  lifetime: { value: "TIME", meaning: "longest time that it runs, used or not, until --on-expiry" },
  "on-expiry": { value: "ACTION", meaning: "what the end of its lifetime does: destroy (the default) or pause" },
  retention: { value: "TIME", meaning: "destroy it after this time in paused, stopped or error" },
  "auto-resume": { meaning: "once paused, exec, shell, cp and the like resume it" },
};

export const commands: Commands = {
  create: {
    usage:
      "[TEMPLATE] [--name NAME] [--label KEY=VALUE]… [-e NAME=VALUE]… [--vcpus N] [--memory SIZE] [--disk SIZE] [--timeout TIME] " +
      "[--on-timeout pause|destroy] [--lifetime TIME] [--on-expiry pause|destroy] [--retention TIME] [--auto-resume] " +
      "[--no-wait]",
    meaning: "create a capsule, and print its id when it runs",
    details: "A TIME is seconds, or 90s, 5m, 2h, 7d; 0, the default, is none.",
    options: {
      ...createOptions,
      template: { value: "NAME", short: "t", meaning: `the same as TEMPLATE; default: ${createDefaults.template}` },
      "no-wait": { meaning: "print the id at once, while the capsule starts" },
    },
    words: [0, 1],
    examples: [
      ["ID=$(capsule create)", "default template and size; keep the id"],
      ["capsule create mine --timeout 10m", "from a template; paused after ten idle minutes"],
      ["capsule create --lifetime 2h --retention 7d", "gone after two hours, or a week after a pause"],
      ["capsule create --name web --label env=test", "with a name: capsule exec web -- uptime"],
      ["capsule create --json", "every field of the capsule, as one JSON object"],
    ],
    load: async () => (await capsules()).create,
  },
  run: {
    usage: "[--rm] [-i] [-t] [OPTIONS] [TEMPLATE] -- CMD [ARG…]",
    meaning: "create a capsule and run a command in it",
    details:
      "Takes the options of create. Input, output and exit codes are those of exec. With --rm the capsule is destroyed at the end, " +
      "whatever happens, Ctrl-C included; without it its id is printed on standard error.",
    options: {
      rm: { meaning: "destroy the capsule at the end" },
      interactive: { short: "i", meaning: "pass standard input on, although it is a terminal" },
      tty: { short: "t", meaning: "run the command in a terminal" },
      user: commandOptions.user,
      cwd: commandOptions.cwd,
      ...createOptions,
    },
    words: [0, 1],
    rest: "after-dashes",
    passesExitCode: true,
    outlivesReader: true,
    completes: "template",
    examples: [
      ["capsule run --rm -- python3 -c 'print(6*7)'", "nothing is left behind"],
      ["capsule run --rm -it -- bash", "a shell to try something in"],
      ["capsule run --name build --memory 2G dev -- make", "keep the capsule"],
    ],
    load: async () => (await import("./run.ts")).run,
  },
  ls: {
    usage: "[--watch] [--quiet] [--status STATUS] [--label KEY=VALUE]… [--name NAME]",
    meaning: "list the capsules, newest first",
    options: {
      watch: { short: "w", meaning: "update the list as capsules change, until Ctrl-C" },
      quiet: { short: "q", meaning: "print ids only" },
      status: { value: "STATUS", meaning: "only those in this status, or one of several: running,paused" },
      label: { value: "KEY=VALUE", isList: true, meaning: "only those that have this label" },
      name: { value: "NAME", meaning: "only the one with this name" },
    },
    words: [0, 0],
    examples: [
      ["capsule ls --watch", "the list, updated live"],
      ["capsule ls -q --label env=test | xargs -r capsule rm", "destroy those with a label"],
    ],
    load: async () => (await capsules()).ls,
  },
  inspect: {
    usage: "ID…",
    meaning: "print every field of capsules, as JSON",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule inspect web", "indented; with --json on one line"]],
    load: async () => (await capsules()).inspect,
  },
  set: {
    usage: "ID KEY=VALUE…",
    meaning: "change a capsule's name, labels or policies, all of them or none",
    details:
      "Keys: name, label.KEY, and those of create: timeout_sec, on_timeout, lifetime_sec (of a running capsule from now on), " +
      "on_expiry, retention_sec and auto_resume (true or false). Times are seconds, or 90s, 5m, 2h, 7d; 0 is none. An empty value takes a name or a label " +
      "away.",
    options: {},
    words: [2, 40],
    completes: "capsule",
    examples: [
      ["capsule set ID name=web label.env=test", "give it a name and a label"],
      ["capsule set web lifetime_sec=2h on_expiry=pause", "pause it two hours from now"],
      ["capsule set web timeout_sec=10m label.env=", "pause it after ten idle minutes, and take the label away"],
    ],
    load: async () => (await capsules()).set,
  },
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
  ports: {
    usage: "ID",
    meaning: "list the ports on which servers in a capsule listen",
    options: {},
    words: [1, 1],
    completes: "capsule",
    examples: [["capsule ports ID", "TCP only; the capsule must run"]],
    load: async () => (await processes()).ports,
  },
  forward: {
    usage: "ID [BIND:][LOCAL:]PORT… | --stdio ID PORT",
    meaning: "connect local ports, or standard input and output, to servers in a capsule",
    details:
      "Each connection to a local port is one to 127.0.0.1, ::1 or eth0's address in the capsule. BIND is 127.0.0.1 and LOCAL is PORT by " +
      "default; 0 is any free port. A line for each is printed once it listens. Ends by Ctrl-C. A capsule with auto_resume is resumed " +
      "by a connection.",
    options: { stdio: { meaning: "one connection, of standard input and output: for ssh's ProxyCommand" } },
    words: [2, 33],
    completes: "capsule",
    examples: [
      ["capsule forward ID 5432", "psql -h 127.0.0.1 reaches the database in the capsule"],
      ["capsule forward ID 8080:80 0.0.0.0:9000:90", "other local ports, and for other machines"],
      ["ssh -o ProxyCommand='capsule forward --stdio ID 22' user@ID", "ssh to a capsule"],
    ],
    load: async () => (await import("./forward.ts")).forward,
  },
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
  pause: {
    usage: "ID…",
    meaning: "save a capsule to disk, with memory and processes, and free its CPU and memory",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule pause ID", "returns when everything is on disk"]],
    load: async () => (await capsules()).pause,
  },
  resume: {
    usage: "ID…",
    meaning: "continue a paused capsule, with every process as it was",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule resume ID", "returns when the capsule runs"]],
    load: async () => (await capsules()).resume,
  },
  stop: {
    usage: "ID…",
    meaning: "end a capsule's programs and its virtual machine; its disk is kept",
    details:
      "Programs get SIGTERM, and SIGKILL ten seconds later. Memory is not kept: pause a capsule that is to go on as it was.",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule stop ID && capsule start ID", "a new start of the system, with the same files"]],
    load: async () => (await capsules()).stop,
  },
  start: {
    usage: "ID…",
    meaning: "boot a stopped capsule, or one in status error, from its disk",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule start ID", "returns when the capsule runs"]],
    load: async () => (await capsules()).start,
  },
  snapshot: {
    usage: "[--overwrite] ID [NAME]",
    meaning: "turn a capsule into a template; the capsule itself is destroyed",
    options: { overwrite: { meaning: "replace the template of that name" } },
    words: [1, 2],
    completes: "capsule",
    examples: [["capsule snapshot ID my-tools", "then: capsule create --template my-tools"]],
    load: async () => (await capsules()).snapshot,
  },
  rm: {
    usage: "ID…",
    meaning: "destroy capsules, whatever their status",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule rm ID", "cannot be undone"]],
    load: async () => (await capsules()).rm,
  },
  ...serviceCommands,
};
