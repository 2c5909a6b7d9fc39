/**
 * Bundles the dashboard into a folder: a page and, under assets/, files with a content hash in their names.
 * As a program: `node web/build.ts FOLDER`. The folder is replaced as a whole, after the build has succeeded.
 */
import { copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";
import { type BuildResult, build } from "esbuild";

const web = import.meta.dirname;

/** Placeholder in page.html → the entry whose output replaces it. */
const entries = {
  "main.js": "main.tsx",
  "theme.js": "theme.ts",
  "main.css": "styles/main.css",
} as const;

/** Resolves with the paths of the bundled sources, relative to the repository. Throws esbuild's errors. */
export async function bundle(folder: string): Promise<string[]> {
  const parent = dirname(resolve(folder));
  await mkdir(parent, { recursive: true });
  const made = await mkdtemp(join(parent, ".web-"));
  try {
    const { metafile } = await compile(join(made, "assets"));
    await writeFile(join(made, "index.html"), await page(metafile, made));
    await copyFile(join(web, "icon.svg"), join(made, "icon.svg"));
    await rm(folder, { recursive: true, force: true });
    await rename(made, folder);
    return Object.keys(metafile.inputs).map((input) => relative(resolve(web, ".."), resolve(input)));
  } finally {
    await rm(made, { recursive: true, force: true });
  }
}

function compile(outdir: string): Promise<BuildResult<{ metafile: true }>> {
  return build({
    entryPoints: Object.values(entries).map((entry) => join(web, entry)),
    outdir,
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    bundle: true,
    minify: true,
    splitting: true,
    format: "esm",
    target: ["chrome123", "firefox120", "safari17.5"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "linked",
    metafile: true,
    logLevel: "silent",
  });
}

async function page(metafile: BuildResult<{ metafile: true }>["metafile"], made: string): Promise<string> {
  let html = await readFile(join(web, "page.html"), "utf8");
  for (const [placeholder, entry] of Object.entries(entries)) {
    const output = Object.entries(metafile.outputs).find(([, { entryPoint }]) => {
      return entryPoint !== undefined && resolve(entryPoint) === join(web, entry);
    });
    if (output === undefined) throw new Error(`${entry} was not bundled`);
    html = html.replace(`{{${placeholder}}}`, relative(made, resolve(output[0])));
  }
  return html;
}

if (import.meta.main) {
  const folder = process.argv[2];
  if (folder === undefined) throw new Error("usage: node web/build.ts FOLDER");
  await bundle(folder);
}
