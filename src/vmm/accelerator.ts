export interface Accelerator {
  kind: "kvm" | "tcg";
  cpu: string;
  tscKhz: number | null;
  why: string;
}
