"""Play a trace over a decoder and a buffer under an arm, and observe every step; nothing is judged here.

Next to the lane under test runs a reference lane: a buffer of the same revision and the same decoder,
uncompiled, called by a correct engine with the same payloads. The outputs of both are compared.

`play_case.play_case` plays a case in this process, among the workers of `ranks`, or where Triton's code is
interpreted. `case_worker.CaseWorker` plays cases in a warm worker, which runs the functions of `work`
and `source_work`.
`observe` plays all steps of a case, `player` one step, `lane` the calls of a step. `rows` finds the payload
that a row came from, `tensors` draws payloads, `model` has decoders, `attempt` catches what a call raises.

Private: what is public is imported from `deepstack_harness` itself.
"""
