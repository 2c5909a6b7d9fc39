/** Completion for shells, made of the table of commands. Ids are asked of the service while the person waits. */
import { type Call, type Command, commonOptions, UsageError } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { printLine } from "./screen.ts";

const operatorCommands = ["serve", "down", "doctor", "backup"];

type Commands = Record<string, Command>;

export async function completion(call: Call, commands: Commands): Promise<number> {
  const script = scripts[call.words[0]!];
  if (script === undefined) throw new UsageError("it is bash, zsh or fish");
  await printLine(script(commands));
  return exitCodes.done;
}

export const scripts: Record<string, (commands: Commands) => string> = { bash, zsh, fish };

const names = (commands: Commands) => [...Object.keys(commands), ...operatorCommands];
const optionsOf = (command: Command) => Object.keys({ ...command.options, ...commonOptions });

/** Names of the commands whose words are capsules' ids. */
function takingIds(commands: Commands): string[] {
  const entries = Object.entries(commands);
  return entries.filter(([, { completes }]) => completes === "capsule" || completes === "path").map(([name]) => name);
}

/** What may stand after the command's name, but for ids. */
function wordsOf(command: Command): string[] {
  return [
    ...(Array.isArray(command.completes) ? command.completes : []),
    ...optionsOf(command).map((option) => `--${option}`),
  ];
}

function bash(commands: Commands): string {
  const cases = Object.entries(commands).map(
    ([name, command]) => `    ${name}) words="${wordsOf(command).join(" ")}" ;;`,
  );
  return `_capsule() {
  local cur=\${COMP_WORDS[COMP_CWORD]} words="" command=\${COMP_WORDS[1]-}
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "${names(commands).join(" ")}" -- "$cur"))
    return
  fi
  case $command in
${cases.join("\n")}
  esac
  case $command in
    ${takingIds(commands).join(" | ")}) [[ $cur == -* ]] || words+=" $("\${COMP_WORDS[0]}" ls --quiet 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [[ $command != cp ]] || COMPREPLY+=($(compgen -f -- "$cur"))
}
complete -F _capsule capsule`;
}

function zsh(commands: Commands): string {
  const described = Object.entries(commands).map(([name, { meaning }]) => `    ${quoted(`${name}:${meaning}`)}`);
  const cases = Object.entries(commands).map(
    ([name, command]) => `    ${name}) compadd -- ${wordsOf(command).join(" ")} ;;`,
  );
  return `#compdef capsule
_capsule() {
  local -a commands=(
${described.join("\n")}
${operatorCommands.map((name) => `    '${name}'`).join("\n")}
  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  case $words[2] in
${cases.join("\n")}
  esac
  case $words[2] in
    ${takingIds(commands).join("|")}) compadd -- \${(f)"$("$words[1]" ls --quiet 2>/dev/null)"} ;;
  esac
  [[ $words[2] != cp ]] || _files
}
# As a file of fpath it is the function itself; else it is told of here.
if [[ $funcstack[1] == _capsule ]]; then _capsule; else compdef _capsule capsule; fi`;
}

function fish(commands: Commands): string {
  const lines = ["complete -c capsule -f"];
  const before = "__fish_use_subcommand";
  for (const [name, { meaning, options, completes }] of Object.entries(commands)) {
    const after = `__fish_seen_subcommand_from ${name}`;
    lines.push(`complete -c capsule -n ${before} -a ${name} -d ${quoted(meaning)}`);
    for (const word of Array.isArray(completes) ? completes : [])
      lines.push(`complete -c capsule -n '${after}' -a ${word}`);
    for (const [option, { short, value, meaning: what }] of Object.entries({ ...options, ...commonOptions })) {
      const letter = short === undefined ? "" : ` -s ${short}`;
      lines.push(
        `complete -c capsule -n '${after}' -l ${option}${letter}${value === undefined ? "" : " -r"} -d ${quoted(what)}`,
      );
    }
  }
  for (const name of operatorCommands) lines.push(`complete -c capsule -n ${before} -a ${name}`);
  const ids = `__fish_seen_subcommand_from ${takingIds(commands).join(" ")}`;
  lines.push(`complete -c capsule -n '${ids}' -a '(capsule ls --quiet 2>/dev/null)'`);
  lines.push("complete -c capsule -n '__fish_seen_subcommand_from cp' -F");
  return lines.join("\n");
}

/** One word to any of these shells. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
