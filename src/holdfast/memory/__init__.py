"""Knowledge that outlives a session. Is handed a store and an embedder; knows no models, sessions or servers."""
