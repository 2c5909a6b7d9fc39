/** The SDK's npm package, packed and installed in an empty project. */
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";

export const root = resolve(import.meta.dirname, "../..");
export const run = promisify(execFile);

export class Project implements AsyncDisposable {
  readonly folder: string;
  /** The installed package. */
  readonly installed: string;

  static async create(): Promise<Project> {
    const project = new Project(await mkdtemp(join(tmpdir(), "capsule-sdk-")));
    const built = join(project.folder, "built");
    const tarball = join(project.folder, "sdk.tgz");
    await run(process.execPath, [join(root, "sdk/build.ts"), built, tarball]);
    await mkdir(project.installed, { recursive: true });
    await run("tar", ["xf", tarball, "-C", project.installed, "--strip-components=1"]);
    await symlink(join(root, "node_modules/ws"), join(project.folder, "node_modules/ws"));
    await writeFile(join(project.folder, "package.json"), '{"type":"module"}');
    return project;
  }

  private constructor(folder: string) {
    this.folder = folder;
    this.installed = join(folder, "node_modules/capsule-sdk");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.folder, { recursive: true, force: true });
  }
}
