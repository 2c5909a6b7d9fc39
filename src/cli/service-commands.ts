/** The client's rows of the command table that are about the service and the team. */
import type { Commands } from "./command.ts";

const team = () => import("./team.ts");
const login = () => import("./login.ts");

export const serviceCommands: Commands = {
  templates: {
    usage: "[ls] | rm NAME…",
    meaning: "list or delete templates",
    options: {},
    words: [0, 1_000],
    completes: ["ls", "rm"],
    examples: [
      ["capsule templates", "every template that create takes"],
      ["capsule templates rm mine", "capsules paused on it cannot be resumed any more"],
    ],
    load: async () => (await team()).templates,
  },
  keys: {
    usage: "[ls] | new NAME | rm KEY_ID…",
    meaning: "list, create or revoke API keys of your team",
    details:
      "A new key is printed once, alone on standard output. The keys of every team are managed on the server's own " +
      "machine, by capsule admin keys.",
    options: {},
    words: [0, 1_000],
    completes: ["ls", "new", "rm"],
    examples: [
      ["capsule keys new ci", "a key for the build server"],
      [
        "capsule keys rm key-0123456789ab",
        "refused from now on, as are all keys made with it; open connections are closed",
      ],
    ],
    load: async () => (await team()).keys,
  },
  limits: {
    usage: "",
    meaning: "show the service's limits and your team's usage",
    options: {},
    words: [0, 0],
    examples: [["capsule limits --json", "as JSON, in the units that end the names"]],
    load: async () => (await team()).limits,
  },
  stats: {
    usage: "[--watch] [ID…]",
    meaning: "show how much CPU, memory and disk capsules use",
    details:
      "Without an ID, of all that run. CPU is percent of one. Memory and disk of an idle capsule are those that it had when " +
      "it was last active; - is not known.",
    options: { watch: { short: "w", meaning: "again every 10 s, until Ctrl-C" } },
    words: [0, 1_000],
    completes: "capsule",
    examples: [
      ["capsule stats", "every running capsule"],
      ["capsule stats -w --json web", "a line of JSON every 10 s"],
    ],
    load: async () => (await import("./stats.ts")).stats,
  },
  open: {
    usage: "",
    meaning: "print a one-time link that signs you in to the dashboard",
    options: {},
    words: [0, 0],
    examples: [["capsule open", "the link expires after some minutes"]],
    load: async () => (await team()).open,
  },
  completion: {
    usage: "bash|zsh|fish",
    meaning: "print the completion script for a shell",
    options: {},
    words: [1, 1],
    completes: ["bash", "zsh", "fish"],
    examples: [
      ['eval "$(capsule completion bash)"', "in ~/.bashrc"],
      ['eval "$(capsule completion zsh)"', "in ~/.zshrc, after compinit"],
      ["capsule completion fish > ~/.config/fish/completions/capsule.fish", "for fish"],
    ],
    load: async () => (await import("./completion.ts")).completion,
  },
  events: {
    usage: "",
    meaning: "print each change of a capsule or a template, until Ctrl-C",
    details: "A connection that is lost is made again; no event is missed unless the service tells so.",
    options: {},
    words: [0, 0],
    examples: [["capsule events --json", "one JSON object per line"]],
    load: async () => (await import("./events.ts")).events,
  },
  login: {
    usage: "[--context NAME] URL",
    meaning: "remember a service and a key for the commands that follow",
    details:
      "The key is asked for, or read from standard input, tried, and written to contexts.json in $XDG_CONFIG_HOME/capsule " +
      "(~/.config/capsule), mode 0600. CAPSULE_URL and CAPSULE_API_KEY go before it; this folder's server comes after it.",
    options: { context: { value: "NAME", meaning: "what to call it; default: the URL's host" } },
    words: [1, 1],
    examples: [
      ["capsule login https://capsules.example.org", "asks for the key"],
      ["capsule login --context work https://capsules.example.org <key.txt", "in a script"],
    ],
    load: async () => (await login()).login,
  },
  context: {
    usage: "[NAME]",
    meaning: "list the services that you have logged in to, or choose one",
    options: {},
    words: [0, 1],
    examples: [
      ["capsule context", "the chosen one has a star"],
      ["capsule context work", "the next commands go there"],
    ],
    load: async () => (await login()).context,
  },
  version: {
    usage: "",
    meaning: "print the versions of this program and of the server",
    options: {},
    words: [0, 0],
    examples: [["capsule version", "works without a key on the server's machine"]],
    load: async () => (await team()).version,
  },
};
