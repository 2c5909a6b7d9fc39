import assert from "node:assert/strict";
import { test } from "node:test";
import { findProgram, librariesIn, programFilesOf } from "./program-files.ts";

test("libraries are read out of what ldd says", () => {
  const said = `	linux-vdso.so.1 (0x00007ffd)
	libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f01)
	libgone.so => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f02)
`;
  assert.deepEqual(librariesIn(said), ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]);
  assert.deepEqual(librariesIn("	statically linked\n"), []);
});

test("a program is shown with its libraries' folders, and neither /etc nor other programs", async () => {
  const { program, readOnly } = await programFilesOf("qemu-img");
  assert.equal(program, findProgram("qemu-img"));
  assert.ok(readOnly.includes(program));
  assert.ok(readOnly.some((path) => path.includes("/lib")));
  for (const path of ["/", "/usr", "/usr/bin", "/bin", "/etc"]) assert.ok(!readOnly.includes(path), path);
});

test("a program that is not there is an error that names it", async () => {
  assert.equal(findProgram("no-such-program"), undefined);
  await assert.rejects(programFilesOf("no-such-program"), /no-such-program does not run here/);
});
