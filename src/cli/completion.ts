/** Completion for shells, made of the command table. Capsules' ids are asked of the service while the person waits. */
import { type Call, type Command, type Commands, optionsOf, UsageError } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { printLine } from "./screen.ts";

export async function completion(call: Pick<Call, "words" | "commands">): Promise<number> {
  const [shell = ""] = call.words;
  const script = Object.hasOwn(scripts, shell) ? scripts[shell] : undefined;
  if (script === undefined) throw new UsageError("use bash, zsh or fish");
  await printLine(script(call.commands));
  return exitCodes.done;
}

export const scripts: Record<string, (commands: Commands) => string> = { bash, zsh, fish };

/**
 * The words typed before the cursor → the words and options that may follow; longer lines first, as shells try them.
 */
function following(commands: Commands): [typed: string, words: string[]][] {
  const found = new Map<string, string[]>();
  for (const [name, command] of Object.entries(commands)) {
    const words = name.split(" ");
    for (const at of words.keys()) {
      const typed = words.slice(0, at).join(" ");
      found.set(typed, [...new Set([...(found.get(typed) ?? []), words[at]!])]);
    }
    found.set(name, argumentsOf(command));
  }
  return [...found].sort(([a], [b]) => b.length - a.length);
}

function argumentsOf(command: Command): string[] {
  const fixed = Array.isArray(command.completes) ? command.completes : [];
  return [...fixed, ...Object.keys(optionsOf(command)).map((option) => `--${option}`)];
}

/** Names of the commands whose arguments are capsules' ids. */
function takingIds(commands: Commands): string[] {
  const entries = Object.entries(commands);
  return entries.filter(([, { completes }]) => completes === "capsule" || completes === "path").map(([name]) => name);
}

function bash(commands: Commands): string {
  const cases = following(commands).map(([typed, words]) => `    ${begins(typed)}) words="${words.join(" ")}" ;;`);
  return `_capsule() {
  local cur=\${COMP_WORDS[COMP_CWORD]} words="" typed
  printf -v typed '%s ' "\${COMP_WORDS[@]:1:COMP_CWORD-1}"
  case $typed in
${cases.join("\n")}
  esac
  case \${COMP_WORDS[1]-} in
    ${takingIds(commands).join(" | ")})
      ((COMP_CWORD == 1)) || [[ $cur == -* ]] || words+=" $("\${COMP_WORDS[0]}" ls --quiet 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [[ $typed != 'cp '* ]] || COMPREPLY+=($(compgen -f -- "$cur"))
}
complete -F _capsule capsule`;
}

/** A pattern for lines that begin with these words; the empty one, which comes last, is for the command's name. */
function begins(typed: string): string {
  return typed === "" ? "' '" : `'${typed} '*`;
}

function zsh(commands: Commands): string {
  const names = new Map<string, string>();
  for (const [name, { meaning }] of Object.entries(commands)) {
    if (name.includes(" ")) names.set(name.split(" ")[0]!, "commands for the operator");
    else names.set(name, meaning);
  }
  const cases = following(commands)
    .filter(([typed]) => typed !== "")
    .map(([typed, words]) => `    ${begins(typed)}) compadd -- ${words.join(" ")} ;;`);
  return `#compdef capsule
_capsule() {
  local -a commands=(
${[...names].map(([name, meaning]) => `    ${quoted(`${name}:${meaning}`)}`).join("\n")}
  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  case "\${words[2,CURRENT-1]} " in
${cases.join("\n")}
  esac
  case $words[2] in
    ${takingIds(commands).join("|")}) compadd -- \${(f)"$("$words[1]" ls --quiet 2>/dev/null)"} ;;
  esac
  [[ $words[2] != cp ]] || _files
}
# Loaded from fpath, this file is the body of _capsule; evaluated, it registers the function.
if [[ $funcstack[1] == _capsule ]]; then _capsule; else compdef _capsule capsule; fi`;
}

function fish(commands: Commands): string {
  const lines = [
    "function __capsule_typed # whether the line begins with these words",
    "  set -l typed (commandline -opc)",
    "  set -e typed[1]",
    `  string match -q -- "$argv *" "$typed "`,
    "end",
    "complete -c capsule -f",
  ];
  const offer = (condition: string, what: string) => lines.push(`complete -c capsule -n ${condition} ${what}`);
  const after = (typed: string) => (typed === "" ? "__fish_use_subcommand" : `'__capsule_typed ${typed}'`);
  for (const [typed, words] of following(commands).reverse()) {
    const command = commands[typed];
    for (const word of words.filter((each) => !each.startsWith("--"))) {
      const meaning = commands[`${typed} ${word}`.trim()]?.meaning;
      offer(after(typed), `-a ${word}${meaning === undefined ? "" : ` -d ${quoted(meaning)}`}`);
    }
    for (const [option, { short, value, meaning }] of Object.entries(command === undefined ? {} : optionsOf(command))) {
      const letter = short === undefined ? "" : ` -s ${short}`;
      offer(after(typed), `-l ${option}${letter}${value === undefined ? "" : " -r"} -d ${quoted(meaning)}`);
    }
  }
  for (const name of takingIds(commands)) offer(after(name), "-a '(capsule ls --quiet 2>/dev/null)'");
  offer(after("cp"), "-F");
  return lines.join("\n");
}

/** One word to any of these shells. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
