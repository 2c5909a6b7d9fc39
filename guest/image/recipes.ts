/** The built-in images: packages of Debian, and Node, of which Debian's release has an older version. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createDefaults } from "../../src/wire/defaults.ts";
import { keyOf, parsePackages, type Settings } from "./inputs.ts";

export interface Recipe {
  /** The template's name. */
  name: string;
  /** Lists of Debian's packages, files of this folder. */
  lists: string[];
  /** Node and npm are in /usr/local. */
  hasNode: boolean;
}

export const minimal: Recipe = { name: createDefaults.template, lists: ["packages.txt"], hasNode: false };
export const dev: Recipe = { name: "dev", lists: ["packages.txt", "packages-dev.txt"], hasNode: true };
export const recipes: readonly Recipe[] = [minimal, dev];

/** Names of Debian's packages. */
export async function packagesOf({ lists }: Recipe): Promise<string[]> {
  const texts = await Promise.all(lists.map((list) => readFile(join(import.meta.dirname, list), "utf8")));
  return parsePackages(texts.join("\n"));
}

/** Key of the recipe's root file system; `settings` are the caller's. */
export async function recipeKey({ lists, hasNode }: Recipe, settings: Settings): Promise<string> {
  const code = ["root.ts", "program.ts", "customize"];
  return keyOf(settings, [...code, ...(hasNode ? ["node.ts"] : []), ...lists]);
}
