/** The commands, as data. Help, completion and docs/CLI.md are made of this. */
import type { Command } from "./command.ts";

const life = () => import("./capsules.ts");

export const commands: Record<string, Command> = {
  create: {
    usage: "[--template NAME] [--vcpus N] [--memory MIB] [--timeout SEC] [--no-wait]",
    meaning: "make a capsule, and print its id when it runs",
    options: {
      template: { value: "NAME", short: "t", meaning: "what it begins as; default: minimal" },
      vcpus: { value: "N", meaning: "virtual CPUs; default: 1" },
      memory: { value: "MIB", short: "m", meaning: "memory in MiB; default: 512" },
      timeout: { value: "SEC", meaning: "pause it after so many seconds without a command; default: 0, never" },
      "no-wait": { meaning: "do not wait until it runs" },
    },
    words: [0, 0],
    examples: [
      ["ID=$(capsule create)", "one with the defaults, its id kept"],
      ["capsule create --template mine --timeout 600", "from a template, paused after ten idle minutes"],
      ["capsule create --json", "all that is known of it, as one JSON object"],
    ],
    load: async () => (await life()).create,
  },
  ls: {
    usage: "[--watch] [--quiet]",
    meaning: "list the capsules, newest first",
    options: {
      watch: { short: "w", meaning: "keep the list true while it changes" },
      quiet: { short: "q", meaning: "print ids only" },
    },
    words: [0, 0],
    examples: [
      ["capsule ls --watch", "the list, live"],
      ["capsule ls -q | xargs -r capsule rm", "destroy them all"],
    ],
    load: async () => (await life()).ls,
  },
  exec: {
    usage: "[-e NAME=VALUE]… [--cwd DIR] [--timeout SEC] [--background [--tag TAG]] ID -- CMD [ARG…]",
    meaning: "run a command; its output and exit code become those of this one",
    details:
      "There is no shell in between; for pipes and the like: exec ID -- sh -c '…'. " +
      "Ctrl-C asks the command to end (SIGTERM), another one kills it. " +
      "Exit codes: the command's own; 124 when --timeout ran out; 125 when the service did not run it; 127 when there " +
      "is no such command. The command has no standard input.",
    options: {
      env: { value: "NAME=VALUE", short: "e", isList: true, meaning: "an environment variable" },
      cwd: { value: "DIR", meaning: "working directory; default: the home directory" },
      timeout: { value: "SEC", meaning: "kill it after so many seconds; default: 0, never" },
      background: { short: "b", meaning: "leave it running, and print its tag" },
      tag: { value: "TAG", meaning: "with --background: what it is called by" },
    },
    words: [1, 1],
    rest: "after-word",
    completes: "capsule",
    examples: [
      ["capsule exec ID -- python3 -c 'print(6*7)'", "a program with its arguments"],
      ["capsule exec ID -- sh -c 'ls | wc -l'", "a line for the shell"],
      ["capsule exec --background --tag web ID -- python3 -m http.server", "in the background, by a name"],
    ],
    load: async () => (await import("./exec.ts")).exec,
  },
  shell: {
    usage: "[--tag TAG] [--user NAME] [--cwd DIR] ID [-- CMD [ARG…]]",
    meaning: "open a terminal in it",
    details:
      "Ctrl-] d leaves the terminal running and prints how to come back; Ctrl-] Ctrl-] types one Ctrl-]. " +
      "A connection that breaks is made again by itself. Exit code: that of what ran in the terminal.",
    options: {
      tag: { value: "TAG", meaning: "come back to a terminal that was left" },
      user: { value: "NAME", short: "u", meaning: "as this user; default: root" },
      cwd: { value: "DIR", meaning: "working directory; default: the home directory" },
    },
    words: [1, 1],
    rest: "after-dashes",
    completes: "capsule",
    examples: [
      ["capsule shell ID", "bash"],
      ["capsule shell ID -- python3", "something else"],
      ["capsule shell ID --tag pty-0a1b2c3d", "back to one that was left by Ctrl-] d"],
    ],
    load: async () => (await import("./shell.ts")).shell,
  },
  cp: {
    usage: "[--quiet] SRC ID:DST | ID:SRC DST",
    meaning: "copy files and folders in or out; - is standard input or output",
    details:
      "Folders are copied with all that is in them, links as links, with their modes. A path in a capsule that does not " +
      "begin with / begins at the home directory. Whatever a capsule says, nothing is written outside of DST.",
    options: { quiet: { short: "q", meaning: "show no progress" } },
    words: [2, 2],
    completes: "path",
    examples: [
      ["capsule cp src ID:/work/", "a folder, into another"],
      ["capsule cp ID:/work/out.csv .", "a file, out"],
      ["tar c . | capsule cp - ID:/work/all.tar", "standard input"],
      ["capsule cp ID:/var/log/app.log - | less", "standard output"],
    ],
    load: async () => (await import("./copy.ts")).cp,
  },
  ps: {
    usage: "ID",
    meaning: "list the processes in it",
    options: {},
    words: [1, 1],
    completes: "capsule",
    examples: [["capsule ps ID", "all of them, with their tags"]],
    load: async () => (await import("./processes.ts")).ps,
  },
  kill: {
    usage: "[--signal KILL|TERM] ID PID|TAG",
    meaning: "end a process and its children",
    options: { signal: { value: "NAME", short: "s", meaning: "KILL (the default) or TERM" } },
    words: [2, 2],
    completes: "capsule",
    examples: [["capsule kill --signal TERM ID web", "ask it to end"]],
    load: async () => (await import("./processes.ts")).kill,
  },
  logs: {
    usage: "--follow ID PID|TAG",
    meaning: "follow the output of a background process from now on",
    details: "What a process has written before is not kept by the service. Ctrl-C leaves the process running.",
    options: { follow: { short: "f", meaning: "from now on; there is no other way" } },
    words: [2, 2],
    completes: "capsule",
    examples: [["capsule logs -f ID web", "until it ends, or Ctrl-C"]],
    load: async () => (await import("./processes.ts")).logs,
  },
  pause: {
    usage: "ID…",
    meaning: "put it to disk with its memory and processes; its machine is free again",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule pause ID", "returns when all is on disk"]],
    load: async () => (await life()).pause,
  },
  resume: {
    usage: "ID…",
    meaning: "let a paused one go on where it was",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule resume ID", "returns when it runs"]],
    load: async () => (await life()).resume,
  },
  snapshot: {
    usage: "[--overwrite] ID [NAME]",
    meaning: "turn it into a template, and destroy it",
    options: { overwrite: { meaning: "replace a template of that name" } },
    words: [1, 2],
    completes: "capsule",
    examples: [["capsule snapshot ID my-tools", "then: capsule create --template my-tools"]],
    load: async () => (await life()).snapshot,
  },
  rm: {
    usage: "ID…",
    meaning: "destroy capsules, whatever they are doing",
    options: {},
    words: [1, 1_000],
    completes: "capsule",
    examples: [["capsule rm ID", "there is no way back"]],
    load: async () => (await life()).rm,
  },
  templates: {
    usage: "[ls] | rm NAME…",
    meaning: "list templates, or delete some",
    options: {},
    words: [0, 1_000],
    completes: ["ls", "rm"],
    examples: [
      ["capsule templates", "all that create can begin with"],
      ["capsule templates rm mine", "capsules paused on it cannot be resumed any more"],
    ],
    load: async () => (await import("./templates.ts")).templates,
  },
  keys: {
    usage: "[ls] | new NAME | rm KEY_ID…",
    meaning: "your team's API keys: list, make (printed alone, once), revoke",
    details:
      "On the server's own machine, for every team and whether the server runs or not: keys create --team NAME " +
      "[--name LABEL], keys list, keys revoke KEY_ID.",
    options: {},
    words: [0, 1_000],
    completes: ["ls", "new", "rm"],
    examples: [
      ["capsule keys new ci", "a key for the build server"],
      ["capsule keys rm key-0123456789ab", "at once, also for connections that are open"],
    ],
    load: async () => (await import("./keys.ts")).keys,
  },
  limits: {
    usage: "",
    meaning: "show what you can run into",
    options: {},
    words: [0, 0],
    examples: [["capsule limits --json", "for programs"]],
    load: async () => (await import("./account.ts")).limits,
  },
  open: {
    usage: "",
    meaning: "print a link that opens the dashboard, once",
    options: {},
    words: [0, 0],
    examples: [["capsule open", "good for some minutes"]],
    load: async () => (await import("./account.ts")).open,
  },
  completion: {
    usage: "bash | zsh | fish",
    meaning: "print what makes that shell complete these commands",
    options: {},
    words: [1, 1],
    completes: ["bash", "zsh", "fish"],
    examples: [
      ['eval "$(capsule completion bash)"', "in ~/.bashrc"],
      ['eval "$(capsule completion zsh)"', "in ~/.zshrc, after compinit"],
      ["capsule completion fish > ~/.config/fish/completions/capsule.fish", "for fish"],
    ],
    load: async () => {
      const { completion } = await import("./completion.ts");
      return (call) => completion(call, commands);
    },
  },
};
