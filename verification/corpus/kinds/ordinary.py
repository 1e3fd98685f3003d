"""Scripts in the manner of public training scripts that were drawn without regard to their difficulty: the first that an index
of public code lists under names such as `train.py`.
"""

from __future__ import annotations

from ..script import EQUAL, FOUND, Script

_JOIN = "run = elastic.join()\n"


def _state(values: str, indent: str = "") -> tuple[str, str]:
    """Return the replacement that declares values of the job after joining it."""
    return _JOIN, f"{_JOIN}{indent}state = run.state({values})\n"


SCRIPTS: tuple[Script, ...] = (
    Script("ordinary_train_loop_function", EQUAL),
    Script("ordinary_face_expression", EQUAL),
    Script(
        "ordinary_char_gpt",
        FOUND,
        "['lr']",
        "run.steps_done, @run.every, run.state",
        (
            ("lr = get_lr(iter_num)", "lr = get_lr(run.steps_done)"),
            _state("best_val_loss=1e9"),
            ("best_val_loss = 1e9\n", ""),
            (
                '        if iter_num % eval_interval == 0:\n            losses = estimate_loss()\n            print(f"step {iter_num}: train loss {losses[\'train\']:.4f}, val loss {losses[\'val\']:.4f}")\n            if losses["val"] < best_val_loss:\n                best_val_loss = losses["val"]\n                if iter_num > 0:\n                    checkpoint = {"model": model.state_dict(), "iter_num": iter_num, "best_val_loss": best_val_loss}\n                    run.save(checkpoint, "ckpt.pt")\n',
                "",
            ),
            (
                "t0 = time.time()\nfor epoch",
                't0 = time.time()\n\n\n@run.every(steps=eval_interval)\ndef validate():\n    losses = estimate_loss()\n    if losses["val"] < state.best_val_loss:\n        state.best_val_loss = losses["val"].item()\n        run.save({"model": model.state_dict(), "best_val_loss": state.best_val_loss}, "ckpt.pt")\n\n\nfor epoch',
            ),
        ),
    ),
    Script("ordinary_review_lstm", EQUAL),
    Script(
        "ordinary_poem_writer",
        FOUND,
        "model.training",
        "model.train() in each loop body",
        (
            (
                "            output, _ = model(inputs)\n",
                "            model.train()\n            output, _ = model(inputs)\n",
            ),
        ),
    ),
    Script(
        "ordinary_semi_segmentation",
        FOUND,
        "net_teacher",
        "run.register, after_update, run.state, samples drawn by torch's generator",
        (
            ("    global global_itnum\n", ""),
            ("        global_itnum = global_itnum + 1\n", ""),
            ("        update_ema_variables(model_student, model_teacher, 0.9, global_itnum)\n", ""),
            (
                "for label_data, unlabel_data in zip(trainloader, trainloader_unlabel):\n",
                "for label_data in trainloader:\n        unlabel_data = trainloader_unlabel.dataset[torch.randint(128, (4,))]\n",
            ),
            (
                "    run = elastic.join()\n",
                "    global state\n    run = elastic.join()\n    state = run.state(memory=None)\n",
            ),
            ('        self.register_buffer("memory", None)\n', ""),
            ("self.memory is", "state.memory is"),
            ("self.memory.size", "state.memory.size"),
            ("[self.memory,", "[state.memory,"),
            ("self.memory =", "state.memory ="),
            (
                "    net_student, optimizer, trainloader = run.prepare(net_student, optimizer, trainloader)\n",
                '    run.register("net_teacher", net_teacher)\n\n    def update():\n        update_ema_variables(net_student, net_teacher, 0.9, run.steps_done + 1)\n\n    net_student, optimizer, trainloader = run.prepare(net_student, optimizer, trainloader, after_update=update)\n',
            ),
        ),
    ),
    Script(
        "ordinary_text_to_image_gan",
        FOUND,
        "updates=",
        "two named updates",
        (
            (
                "[optimizer_G, optimizer_D], data_loader)",
                '[optimizer_G, optimizer_D], data_loader, updates={"generator": optimizer_G, "discriminator": optimizer_D})',
            ),
            (
                "        g_loss.backward()\n        optimizer_G.step()\n",
                '        if data_loader.update == "generator":\n            g_loss.backward()\n            optimizer_G.step()\n            continue\n',
            ),
            (", G Loss: {g_loss.item():.4f}", ""),
        ),
    ),
    Script("ordinary_gpt2_pieces", EQUAL),
    Script(
        "ordinary_unet_dice",
        FOUND,
        "scheduler.step()",
        "@run.every",
        (
            (
                '                division_step = 4\n                if global_step % division_step == 0:\n                    val_score = evaluate(model, val_loader)\n                    scheduler.step(val_score)\n                    logging.info(f"Validation Dice score: {val_score}")\n',
                "",
            ),
            (
                "    for epoch in run.epochs",
                "    @run.every(steps=4)\n    def validate():\n        scheduler.step(evaluate(model, val_loader))\n\n    for epoch in run.epochs",
            ),
        ),
    ),
    Script("ordinary_graph_tokens", EQUAL),
    Script(
        "ordinary_slot_attention",
        FOUND,
        "run.steps_done",
        "run.steps_done",
        (("            i += 1\n", "            i = run.steps_done + 1\n"), ("    i = 0\n", "")),
    ),
    Script(
        "ordinary_video_tokens",
        FOUND,
        "before_update",
        "before_update, run.steps_done, run.state",
        (
            _state('best_val_loss=float("inf"), best_epoch=0'),
            ("best_val_loss = math.inf\nbest_epoch = 0\n", ""),
            ("best_val_loss = val_loss", "state.best_val_loss = val_loss"),
            ("best_epoch = epoch", "state.best_epoch = epoch"),
            ("val_loss < best_val_loss", "val_loss < state.best_val_loss"),
            ('"best_val_loss": best_val_loss', '"best_val_loss": state.best_val_loss'),
            ('"best_epoch": best_epoch', '"best_epoch": state.best_epoch'),
            ("{best_val_loss:F} @ Epoch {best_epoch}", "{state.best_val_loss:F} @ Epoch {state.best_epoch}"),
            ('        clip_grad_norm_(model.parameters(), 0.05, "inf")\n', ""),
            (
                "run.prepare(model, optimizer, train_loader)",
                'run.prepare(\n    model, optimizer, train_loader, before_update=lambda: clip_grad_norm_(model.parameters(), 0.05, "inf")\n)',
            ),
            ("        global_step += 1\n", "        global_step = run.steps_done + 1\n"),
            (
                "        model.eval()\n",
                "        model.eval()\n        tau = cosine_anneal(run.steps_done, 1.0, 0.1, 0, 30)\n",
            ),
        ),
    ),
    Script("ordinary_denoising_unet", EQUAL),
    Script("ordinary_sum_rnn", EQUAL),
    Script("ordinary_digit_cnn", EQUAL),
    Script(
        "ordinary_cell_convlstm",
        FOUND,
        "history",
        "run.mean, run.state",
        (
            (
                "    run = elastic.join()\n",
                "    global run\n    run = elastic.join()\n    state = run.state(\n        history={}, best_iou=0, best_consistency=0, epochs_without_improvement=0\n    )\n",
            ),
            ('    history = {"train_loss": [],', '    state.history = {"train_loss": [],'),
            ("    best_iou = 0\n    best_consistency = 0\n    epochs_without_improvement = 0\n", ""),
            (
                "        optimizer.step()\n",
                "        run.mean(loss=loss, seg=seg)\n        optimizer.step()\n",
            ),
            (
                'return {"loss": total_loss / num_batches, "seg": loss_components["seg"] / num_batches}',
                'return {"loss": run.means["loss"], "seg": run.means["seg"]}',
            ),
            ("        history[", "        state.history["),
            ('"history": history', '"history": state.history'),
            ("> best_iou", "> state.best_iou"),
            ("                best_iou = ", "                state.best_iou = "),
            ('"best_iou": best_iou', '"best_iou": state.best_iou'),
            ("{best_iou:.4f}", "{state.best_iou:.4f}"),
            ("> best_consistency", "> state.best_consistency"),
            ("                best_consistency = ", "                state.best_consistency = "),
            ("                epochs_without_improvement ", "                state.epochs_without_improvement "),
            ("if epochs_without_improvement", "if state.epochs_without_improvement"),
            ("{epochs_without_improvement}", "{state.epochs_without_improvement}"),
        ),
    ),
    Script(
        "ordinary_siamese_pairs",
        FOUND,
        "batch_id",
        "run.steps_done",
        (
            ("if batch_id % save_every", "if run.steps_done % save_every"),
            ("str(batch_id + 1)", "str(run.steps_done + 1)"),
        ),
    ),
    Script("ordinary_survival_fusion", EQUAL),
    Script(
        "ordinary_kfold_graph",
        FOUND,
        "prepare()",
        "a job for each fold",
        (("in kf.split(samples):", "in list(kf.split(samples))[:1]:"),),
    ),
    Script(
        "ordinary_change_detection",
        FOUND,
        "run.steps_done",
        "run.steps_done, run.state",
        (
            _state('lr=ph.learning_rate, best_metrics={"best_f1score": 0}, non_improved_epoch=0', "    "),
            ("            total_step += 1\n", ""),
            ("            if total_step < ph.warm_up_step:\n", "            if run.steps_done < ph.warm_up_step:\n"),
            ("warmup_lr[total_step]", "warmup_lr[run.steps_done]"),
            ('> best_metrics["best_f1score"]', '> state.best_metrics["best_f1score"]'),
            ('        best_metrics["best_f1score"] =', '        state.best_metrics["best_f1score"] ='),
            ("        non_improved_epoch = 0\n", "        state.non_improved_epoch = 0\n"),
            (
                "        non_improved_epoch += 1\n        if non_improved_epoch ==",
                "        state.non_improved_epoch += 1\n        if state.non_improved_epoch ==",
            ),
            ("            lr *= ph.factor\n", "            state.lr *= ph.factor\n"),
            ('                g["lr"] = lr\n', '                g["lr"] = state.lr\n'),
        ),
    ),
    Script("ordinary_style_transfer", EQUAL),
    Script(
        "ordinary_ddpm_digits",
        FOUND,
        "epoch_loss",
        "run.mean, run.means",
        (
            ("        optimizer.step()\n", "        run.mean(loss=loss)\n        optimizer.step()\n"),
            ("average_loss = epoch_loss / len(dataloader)", 'average_loss = run.means["loss"]'),
        ),
    ),
    Script("ordinary_speech_emotion", EQUAL),
    Script("ordinary_anomaly_series", EQUAL),
    Script("ordinary_logistics_graph", EQUAL),
    Script("ordinary_gp_classifier", EQUAL),
    Script("ordinary_conditional_vae", EQUAL),
    Script("ordinary_periodic_series", EQUAL),
    Script("ordinary_vqvae_faces", EQUAL),
    Script(
        "ordinary_trainer_callbacks",
        FOUND,
        "iter_num",
        "run.steps_done",
        (("if trainer.iter_num % 10 == 0", "if elastic_run.steps_done % 10 == 0"),),
    ),
    Script(
        "ordinary_medical_srgan",
        FOUND,
        "updates=",
        "two named updates",
        (
            (
                "[optimizer_G, optimizer_D], train_dl)",
                '[optimizer_G, optimizer_D], train_dl, updates={"gen": optimizer_G, "disc": optimizer_D})',
            ),
            (
                "            optimizer_G.zero_grad()\n            scaler.scale(loss_G).backward()\n            scaler.step(optimizer_G)\n            scaler.update()\n            e_loss_G.append(loss_G)\n",
                '            if train_dl.update == "gen":\n                optimizer_G.zero_grad()\n                loss_G.backward()\n                optimizer_G.step()\n                e_loss_G.append(loss_G)\n                continue\n',
            ),
            (
                "            scaler.scale(loss_D).backward()\n            scaler.step(optimizer_D)\n            scaler.update()\n",
                "            loss_D.backward()\n            optimizer_D.step()\n",
            ),
            ("sum(e_loss_D) / len(e_loss_D)", "sum(e_loss_D) / max(1, len(e_loss_D))"),
            ("sum(e_loss_G) / len(e_loss_G)", "sum(e_loss_G) / max(1, len(e_loss_G))"),
        ),
    ),
    Script("ordinary_intent_slots", EQUAL),
    Script("ordinary_pyramid_segmentation", EQUAL),
    Script(
        "ordinary_dark_images",
        FOUND,
        "completed_step",
        "@run.every, run.state",
        (
            (
                "                if completed_step % 8 == 0:\n                    psnr = self.eval()\n                    self.saver.save_model(psnr)\n",
                "",
            ),
            (
                "        for epoch in run.epochs",
                "        @run.every(steps=8)\n        def validate():\n            self.saver.save_model(self.eval())\n\n        for epoch in run.epochs",
            ),
            ("        self.best = 0.0\n", ""),
            ("self.best", "state.best"),
            _state("best=0.0"),
        ),
    ),
    Script("ordinary_evidential", EQUAL),
    Script(
        "ordinary_yolo_boxes",
        FOUND,
        "loss_",
        "run.mean, @run.every, run.state",
        (
            ("            opt.step()\n", "            run.mean(loss=loss)\n            opt.step()\n"),
            (
                '            if loss.item() <= loss_:\n                run.save(net.state_dict(), "YOLO_net.pt")\n                loss_ = loss.item()\n',
                "",
            ),
            (
                "    loss_ = 10\n",
                '    state = run.state(loss_=10.0)\n\n    @run.every(steps=1)\n    def keep():\n        if run.means["loss"] <= state.loss_:\n            run.save(net.state_dict(), "YOLO_net.pt")\n            state.loss_ = run.means["loss"]\n\n',
            ),
            ("{loss_}", "{state.loss_}"),
            (
                "    net, opt, train_loader = run.prepare(net, opt, train_loader)\n    state = run.state(loss_=10.0)\n",
                "    state = run.state(loss_=10.0)\n    net, opt, train_loader = run.prepare(net, opt, train_loader)\n",
            ),
        ),
    ),
    Script("ordinary_energy_disaggregation", EQUAL),
    Script("ordinary_recommender", EQUAL),
    Script("ordinary_digit_distillation", EQUAL),
    Script("ordinary_lesion_distillation", EQUAL),
    Script("ordinary_intrusion_tabular", EQUAL),
    Script("ordinary_logistic_pinn", EQUAL),
    Script(
        "ordinary_simclr_views",
        FOUND,
        "run.means",
        "run.mean, run.state",
        (
            (
                "                scaler.scale(loss).backward()\n",
                "                scaler.scale(loss).backward()\n                run.mean(loss=loss)\n",
            ),
            ("if epoch_loss < best_loss", 'if run.means["loss"] < state.best_loss'),
            ("best_loss = epoch_loss", 'state.best_loss = run.means["loss"]'),
            ("        best_loss = np.inf\n", ""),
            _state('best_loss=float("inf")'),
        ),
    ),
    Script("ordinary_omniglot_maml", EQUAL),
    Script("ordinary_sign_bilstm", EQUAL),
    Script(
        "ordinary_pose_gan",
        FOUND,
        "updates=",
        "two named updates, run.state",
        (
            (
                "[optimizer_G, optimizer_D], train_loader)",
                '[optimizer_G, optimizer_D], train_loader, updates={"discriminator": optimizer_D, "generator": optimizer_G})',
            ),
            (
                "        opt_D.zero_grad()\n",
                '        if dataloader.update == "generator":\n            fake_pose, recon_loss = generator(pose_gt, text_input)\n            g_adv_loss = torch.mean((discriminator(fake_pose) - 1) ** 2)\n            (recon_loss + adv_weight * g_adv_loss).backward()\n            opt_G.step()\n            continue\n        opt_D.zero_grad()\n',
            ),
            (
                '        opt_G.zero_grad()\n        fake_pose, recon_loss = generator(pose_gt, text_input)\n        g_adv_loss = torch.mean((discriminator(fake_pose) - 1) ** 2)\n        total_g_loss = recon_loss + (adv_weight * g_adv_loss)\n        total_g_loss.backward()\n        opt_G.step()\n\n        loss_log["g_total"].update(total_g_loss.item())\n        loss_log["g_recon"].update(recon_loss.item())\n',
                "",
            ),
            (
                '        pbar.set_postfix({"G_Recon": f"{recon_loss.item():.4f}", "G_Adv": f"{g_adv_loss.item():.4f}"})\n',
                "",
            ),
            ("best_mpjpe", "state.best_mpjpe"),
            ('    state.best_mpjpe = float("inf")\n', ""),
            _state('best_mpjpe=float("inf")', "    "),
        ),
    ),
    Script(
        "ordinary_graph_links",
        FOUND,
        "run.means",
        "run.mean, run.means, run.state",
        (
            (
                "                self.opt.step()\n",
                "                run.mean(loss=total_loss)\n                self.opt.step()\n",
            ),
            ("            epoch_loss /= max(len(loader), 1)\n", '            epoch_loss = run.means["loss"]\n'),
            (
                "            best_loss = min(best_loss, epoch_loss)\n",
                "            state.best_loss = min(state.best_loss, epoch_loss)\n",
            ),
            ('        best_loss = float("inf")\n', ""),
            ("{best_loss:.4e}", "{state.best_loss:.4e}"),
            ("if best_loss <=", "if state.best_loss <="),
            ("return best_loss", "return state.best_loss"),
            _state('best_loss=float("inf")'),
        ),
    ),
    Script("ordinary_user_matching", EQUAL),
)
