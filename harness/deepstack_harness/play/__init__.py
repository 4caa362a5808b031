"""Play a trace over a decoder and a buffer under an arm, and observe every step; nothing is judged here.

Beside the lane under test runs a reference lane: a buffer of the same revision and the same decoder,
uncompiled and driven by a correct engine, given the same payloads.  Outputs are compared with its outputs.

`play_case.play_case` plays a case in this process, among the workers of `ranks`, or where Triton's code is
interpreted.  `case_worker.CaseWorker` plays cases in a warm worker, which runs the functions of `work`
and `source_work`.
`observe` plays all steps of a case, `player` one step, `lane` the calls of a step.  `rows` says which payload
a row came from, `tensors` draws payloads, `model` has decoders, `attempt` catches what a call raises.

Private: what is public is imported from `deepstack_harness` itself.
"""
