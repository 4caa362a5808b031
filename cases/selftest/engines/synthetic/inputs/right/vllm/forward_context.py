def set_forward_context(metadata, has_encoder_inputs):
    return create_forward_context(metadata, skip_compiled=has_encoder_inputs)
