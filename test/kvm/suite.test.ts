/**
 * The service on the machine that most of its users have: Debian with systemd, KVM and control groups v2, all of it in
 * emulation (test/machine). One machine goes through a service's life, so the order of the tests matters.
 */
import { after, before, describe } from "node:test";
import { accelerators } from "./accelerators.ts";
import { conformance } from "./conformance.ts";
import { guests } from "./guests.ts";
import { notInSmoke } from "./kvm-form.ts";
import { KvmWorld } from "./kvm-world.ts";
import { power } from "./power.ts";
import { installation, operation, removal } from "./service.ts";
import { walls } from "./walls.ts";

let world: KvmWorld | undefined;
const its = () => world!;

describe("a whole machine", { concurrency: false }, () => {
  before(async () => {
    world = await KvmWorld.create();
  });
  after(() => world?.[Symbol.asyncDispose]());

  installation(its);
  describe("an installed service", { skip: notInSmoke }, () => operation(its));
  describe("control groups", { skip: notInSmoke }, () => walls(its));
  describe("guests under KVM", { skip: notInSmoke }, () => guests(its));
  conformance(its);
  accelerators(its);
  power(its);
  removal(its);
});
