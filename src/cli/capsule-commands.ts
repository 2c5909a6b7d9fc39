/** Rows of the command table that make, list, change and end capsules. */
import { createDefaults } from "../wire/defaults.ts";
import type { Command, Commands } from "./command.ts";
import { networkOptions } from "./network-commands.ts";
import { commandOptions } from "./process-commands.ts";

const capsules = () => import("./capsules.ts");

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
  ...networkOptions,
};

export const capsuleCommands: Commands = {
  create: {
    usage:
      "[TEMPLATE] [--name NAME] [--label KEY=VALUE]… [-e NAME=VALUE]… [--vcpus N] [--memory SIZE] [--disk SIZE] [--timeout TIME] " +
      "[--on-timeout pause|destroy] [--lifetime TIME] [--on-expiry pause|destroy] [--retention TIME] [--auto-resume] " +
      "[--egress EGRESS] [--allow DEST]… [--deny DEST]… [--public-port PORT]… [--no-wait]",
    meaning: "create a capsule, and print its id when it runs",
    details: "A TIME is seconds, or 90s, 5m, 2h, 7d; 0 is none. The defaults are the service's, see capsule limits.",
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
      watch: { short: "w", meaning: "update the list as capsules change, until q or Ctrl-C" },
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
};

/** Rows that change the status of capsules. */
export const statusCommands: Commands = {
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
};
