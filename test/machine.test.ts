/** The flags of `./dev machine up`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseShape, shapeHelp, usualShape } from "./machine/shape.ts";

test("without flags the machine is the users', and each flag changes one thing", () => {
  assert.deepEqual(parseShape([]), usualShape);
  assert.deepEqual(parseShape(["--kernel", "backports"]), { ...usualShape, kernel: "backports" });
  assert.deepEqual(parseShape(["--qemu", "7.2"]), { ...usualShape, qemu: "7.2" });
  assert.deepEqual(parseShape(["--no-kvm"]), { ...usualShape, hasKvm: false });
  assert.deepEqual(parseShape(["--rootless"]), { ...usualShape, isRootless: true });
  assert.ok(parseShape(["--small-disk"]).dataMb < usualShape.dataMb);
});

test("what is unknown is refused with a sentence, and all that is known stands in the help", () => {
  assert.throws(() => parseShape(["--kernel", "trixie"]), /--kernel is bookworm or backports, not "trixie"/);
  assert.throws(() => parseShape(["--fast"]), /--fast/);
  assert.deepEqual(shapeHelp.match(/--[a-z-]+/g), ["--kernel", "--qemu", "--no-kvm", "--rootless", "--small-disk"]);
});
