/** The operator's rows of the command table. Nothing of the server is loaded until one of them runs. */
import type { Command, Commands } from "../cli/command.ts";
import { foreignOwner } from "../cli/data-folder.ts";
import { Failure } from "../cli/failures.ts";

/** Files that these commands make are readable by their owner only; another user's data folder is refused. */
function local(load: Command["load"]): Pick<Command, "isLocal" | "load"> {
  return ownersOnly(() => {
    const foreign = foreignOwner();
    if (foreign !== undefined) throw new Failure(foreign, "Use sudo.");
    return load();
  });
}

function ownersOnly(load: Command["load"]): Pick<Command, "isLocal" | "load"> {
  return {
    isLocal: true,
    load: async () => {
      process.umask(0o077);
      return load();
    },
  };
}

const keys = () => import("./keys.ts");
const teams = () => import("./teams.ts");
const cluster = () => import("./cluster.ts");

export const operatorCommands: Commands = {
  serve: {
    usage: "",
    meaning: "run the service in the foreground",
    details: "Settings come from the environment.",
    options: {},
    words: [0, 0],
    examples: [["CAPSULE_PORT=9000 capsule serve", "on another port"]],
    appendix: async () => {
      const { configHelp } = await import("../config.ts");
      return `Settings, from the environment (name, default, meaning):\n\n${configHelp()}`;
    },
    ...local(async () => {
      // A streamed file passes through the server in small objects with 64 KiB behind each. In a young generation that
      // has grown while the program is loaded, hundreds of megabytes of them wait to be collected; at its initial 2 MB,
      // few.
      const { setFlagsFromString } = await import("node:v8");
      setFlagsFromString("--semi-space-growth-factor=1");
      return (await import("./serve.ts")).serve;
    }),
  },
  down: {
    usage: "",
    meaning: "stop the server of this data folder and end all its VMs",
    details: "Capsules that ran are in status error at the next start; capsule start boots them from their disks.",
    options: {},
    words: [0, 0],
    examples: [["CAPSULE_DATA=/var/lib/capsule capsule down", "the server of another data folder"]],
    ...local(async () => (await import("./down.ts")).down),
  },
  doctor: {
    usage: "",
    meaning: "check this machine; then boot a capsule and run a command in it",
    options: {},
    words: [0, 0],
    examples: [["capsule doctor", "the last line says whether the service can run here"]],
    ...ownersOnly(async () => (await import("./doctor.ts")).doctor),
  },
  "admin keys create": {
    usage: "--team NAME [--name LABEL]",
    meaning: "create an API key, printed once, alone on standard output",
    details: "A team of that name is created if there is none. Works whether the server runs or not.",
    options: {
      team: { value: "NAME", meaning: "team that the key belongs to" },
      name: { value: "LABEL", meaning: "what the key is for" },
    },
    words: [0, 0],
    examples: [["capsule admin keys create --team blue --name ci", "a key for the build server of team blue"]],
    ...local(async () => (await keys()).createKey),
  },
  "admin keys list": {
    usage: "",
    meaning: "list the API keys of every team, with their last use",
    details: "In a cluster they are those that this host has read, with their last use on this host.",
    options: {},
    words: [0, 0],
    examples: [["capsule admin keys list", "revoked and expired keys too"]],
    ...local(async () => (await keys()).listKeys),
  },
  "admin keys revoke": {
    usage: "[OPTIONS] KEY_ID",
    meaning: "revoke an API key and all keys made with it; a running server refuses them from then on",
    details: "Prints the ids of the revoked keys.",
    options: {
      "keep-made": { meaning: "keep the keys made with it; they count as made by its own maker" },
    },
    words: [1, 1],
    examples: [
      ["capsule admin keys revoke key-0123456789ab", "ids are shown by capsule admin keys list"],
      ["capsule admin keys revoke --keep-made key-0123456789ab", "a key that another one made with it replaces"],
    ],
    ...local(async () => (await keys()).revokeKey),
  },
  "admin teams create": {
    usage: "NAME",
    meaning: "create a team without a key",
    options: {},
    words: [1, 1],
    examples: [["capsule admin teams create blue", "keys: capsule admin keys create --team blue"]],
    ...local(async () => (await teams()).createTeam),
  },
  "admin teams list": {
    usage: "",
    meaning: "list the teams, with the numbers of their keys, capsules and templates",
    details: "In a cluster these are the numbers of all hosts, from its database.",
    options: {},
    words: [0, 0],
    examples: [["capsule admin teams list", "a line each, fields separated by tabs"]],
    ...local(async () => (await teams()).listTeams),
  },
  "admin teams delete": {
    usage: "NAME",
    meaning: "delete a team and its keys; refused while it has capsules or templates",
    details: "A running server refuses its keys from then on. Its audit log stays as long as any other.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin teams delete blue", "cannot be undone"]],
    ...local(async () => (await teams()).deleteTeam),
  },
  "admin ls": {
    usage: "[--team NAME]",
    meaning: "list this host's capsules, of all teams or of one, whether the server runs or not",
    details:
      "In a cluster a team's capsules on all hosts are in GET /v1/capsules, and capsule admin hosts counts those of each host. Fields, separated by tabs: team, id, name, status, vCPUs, memory, last activity, reason of an error.",
    options: { team: { value: "NAME", meaning: "only its capsules" } },
    words: [0, 0],
    examples: [["capsule admin ls | grep error", "those that failed, and why"]],
    ...local(async () => (await teams()).listCapsules),
  },
  "admin audit": {
    usage: "--team NAME [--limit N]",
    meaning: "print a team's audit log, newest first",
    details:
      "In a cluster these are the entries of all hosts that its database has; each host sends its own within seconds. Fields, separated by tabs: time, action, HTTP status, key, capsule, subject, exit code of the command.",
    options: {
      team: { value: "NAME", meaning: "whose log" },
      limit: { value: "N", meaning: "entries; default: 100" },
    },
    words: [0, 0],
    examples: [["capsule admin audit --team blue --limit 10", "what happened last"]],
    ...local(async () => (await teams()).printAudit),
  },
  "admin backup": {
    usage: "FOLDER",
    meaning: "copy the data folder into a new folder, whether the server runs or not",
    details: "Of capsules that run only the record is copied; in the backup they are in status error.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin backup /backup/capsule", "the folder must not exist yet"]],
    ...local(async () => (await import("./backup.ts")).backup),
  },
  "admin cluster init": {
    usage: "--postgres URL [--bucket URL] [--file FILE]",
    meaning: "make a cluster of several hosts, with what this data folder has",
    details:
      "The server must be stopped, and capsule.socket of systemd with it; its VMs run on. The data folder is that of CAPSULE_DATA, and the limits of this environment become the cluster's: an installed service has both in its unit and in /etc/capsule.env. The command names the host, the data folder with its numbers of capsules and teams, and the cluster file. The password of PostgreSQL, then the access key id and the secret access key of a bucket, are asked for, or are lines on standard input. The file has the cluster's secrets and is the same on every host. Prints its path. A command that was ended midway is finished by the same one.",
    options: {
      postgres: { value: "URL", meaning: "an empty database, without a password: postgres://user@host/database" },
      bucket: { value: "URL", meaning: "a bucket of S3: https://HOST/BUCKET[?region=NAME]" },
      file: { value: "FILE", meaning: "file to write, with its folder; default: cluster.json in the data folder" },
    },
    words: [0, 0],
    examples: [
      [
        "capsule admin cluster init --postgres postgres://capsule@localhost/capsule",
        "then CAPSULE_CLUSTER=FILE, and start",
      ],
    ],
    ...local(async () => (await import("./cluster-init.ts")).initCluster),
  },
  "admin cluster check": {
    usage: "",
    meaning: "check that the file of CAPSULE_CLUSTER and its database fit together, and try its bucket",
    options: {},
    words: [0, 0],
    examples: [["CAPSULE_CLUSTER=/etc/capsule/cluster.json capsule admin cluster check", "before the first start"]],
    ...local(async () => (await cluster()).checkCluster),
  },
  "admin cluster confirm": {
    usage: "",
    meaning: "let the hosts go on after the database was put back",
    details:
      "A promoted replica, or a restored dump, may have forgotten what was committed: nothing is made or destroyed until each host has told what it holds, and this command is run. Prints what the database had forgotten, separated by tabs: team, destroyed, held, released or template, the id, the host.",
    options: {},
    words: [0, 0],
    examples: [["capsule admin cluster confirm", "once its hosts are up"]],
    ...local(async () => (await cluster()).confirmCluster),
  },
  "admin cluster set": {
    usage: "NAME=VALUE",
    meaning: "change a limit of the cluster",
    details:
      "Names are those of GET /v1/limits. Quotas of teams hold within a second; a host uses another limit when it is started again, and says so in its log.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin cluster set capsules_max=500", "for each team, over all hosts"]],
    ...local(async () => (await cluster()).setClusterLimit),
  },
  "admin cluster leave": {
    usage: "[--deadline TIME]",
    meaning: "take this host out of its cluster; its data folder serves alone from then on",
    details:
      "Run it on the host itself, with its CAPSULE_CLUSTER and CAPSULE_DATA. The host is drained as by capsule admin hosts drain; once it holds nothing, its server ends. The folder keeps teams, keys, and the templates whose files it has. What cannot move is named with the reason, the exit code is 1, and the host stays in the cluster. The last host is not drained: it gets all capsules and templates of the bucket, and the cluster ends with it. A command that was ended midway is finished by the same one.",
    options: {
      deadline: { value: "TIME", meaning: "no move begins behind it, and no fetch is waited for; default 10m" },
    },
    words: [0, 0],
    examples: [["capsule admin cluster leave", "then start it without CAPSULE_CLUSTER"]],
    ...local(async () => (await import("./cluster-leave.ts")).leaveCluster),
  },
  "admin hosts": {
    usage: "[--json]",
    meaning: "list the hosts of the cluster",
    details:
      "Fields, separated by tabs: name, state, capsules held, those with a VM, their memory, version, seconds since it was seen. Below a host that is being drained: how many capsules are left there, and the first five of them with the reasons.",
    options: { json: { meaning: "print JSON" } },
    words: [0, 0],
    examples: [["capsule admin hosts --json", "an array of objects"]],
    ...local(async () => (await cluster()).listHosts),
  },
  "admin hosts gone": {
    usage: "NAME",
    meaning: "declare that a host never comes back",
    details:
      "Takes 12 seconds, in which the host must not be up. What it holds is in status error from then on; nothing is started elsewhere. Its data folder never joins again, and its server ends if it comes back: end its VMs there by capsule down.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin hosts gone two", "its machine has burned"]],
    ...local(async () => (await cluster()).goneHost),
  },
  "admin hosts drain": {
    usage: "[--wait] [--deadline TIME] NAME",
    meaning: "empty a host, which takes no capsules any more",
    details:
      "New capsules are made on other hosts, released ones resume there, and no VM is started ahead of time. Running capsules are paused and moved to other hosts by the bucket, four at a time, idle ones first. Those with commands in flight follow when these have ended, or a third of the deadline is over. Without a bucket they stay. What stays runs on, and is named with the reason. The host is drained once it holds nothing.",
    options: {
      wait: { meaning: "wait until it holds nothing; exit code 1 where something stays" },
      deadline: { value: "TIME", meaning: "no move begins behind it; default 10m" },
    },
    words: [1, 1],
    examples: [
      ["capsule admin hosts drain two", "before work on its machine"],
      ["capsule admin hosts drain two --wait --deadline 1h", "until its capsules have moved"],
    ],
    ...local(async () => (await cluster()).drain),
  },
  "admin hosts resume": {
    usage: "NAME",
    meaning: "let a host that was drained take capsules again",
    details: "Nothing is changed about a host that is up.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin hosts resume two", "after work on its machine"]],
    ...local(async () => (await cluster()).resumeDrained),
  },
  "admin hosts moved": {
    usage: "NAME",
    meaning: "let a host of this name start where its data folder lies now",
    details:
      "For a folder that was moved to another disk or machine. Takes 12 seconds, in which the host must not be up: a copy must not run beside the folder that it was made from. Stop the server of that one first, and for a move to another machine its VMs as well, by capsule down.",
    options: {},
    words: [1, 1],
    examples: [["capsule admin hosts moved two", "then start host two"]],
    ...local(async () => (await cluster()).moveHost),
  },
};

export const version = async () => (await import("../version.ts")).version;
