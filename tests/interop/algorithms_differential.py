"""Compares policy losses, their gradients and GKD of build/bin/conformance with torch's autograd on random batches:
uneven masks, empty rows, NaN behind the mask, every aggregation, with and without the options on x.

usage: algorithms_differential.py --binary build/bin/conformance [--rounds 60]"""
import argparse
import json
import subprocess

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--binary", required=True)
parser.add_argument("--rounds", type=int, default=60)
options = parser.parse_args()
torch.manual_seed(0); rng=np.random.default_rng(0)
proc=subprocess.Popen([options.binary],stdin=subprocess.PIPE,stdout=subprocess.PIPE,text=True)
def T(a):
    a=np.asarray(a,dtype=float); return {"dtype":"f64","shape":list(a.shape),"data":["nan" if np.isnan(v) else v for v in a.ravel().tolist()]}
def ask(op,params,inputs):
    proc.stdin.write(json.dumps({"id":1,"op":op,"params":params,"inputs":{k:(T(v) if isinstance(v,(np.ndarray,torch.Tensor)) else v) for k,v in inputs.items()}})+"\n"); proc.stdin.flush()
    r=json.loads(proc.stdout.readline()); assert "outputs" in r,(op,params,r); return {k:(np.array([float(x) for x in v["data"]]).reshape(v["shape"]) if isinstance(v,dict) and "data" in v else v) for k,v in r["outputs"].items()}
def cmp(name,a,b):
    a=np.asarray(a,dtype=float); b=np.asarray(b.detach().numpy() if torch.is_tensor(b) else b,dtype=float)
    assert a.shape==b.shape,(name,a.shape,b.shape); assert np.allclose(a,b,rtol=1e-7,atol=1e-10),(name,a,b)
n=0
for it in range(options.rounds):
    B,L=rng.integers(1,6),rng.integers(1,8)
    m=torch.tensor((rng.random((B,L))<.7).astype(float)); 
    lp=torch.tensor(-rng.random((B,L))*2,requires_grad=True); old=lp.detach()+torch.tensor(rng.normal(size=(B,L))*.4); beh=old+torch.tensor(rng.normal(size=(B,L))*.3); ref=lp.detach()+torch.tensor(rng.normal(size=(B,L))*.4)
    A=torch.tensor(rng.normal(size=(B,L))); H=torch.rand(B,L,dtype=torch.float64)
    N=m.sum(); ni=m.sum(1); S=(ni>0).sum()
    def agg(x,mode):
        x=torch.where(m>0,x,torch.zeros_like(x))
        if N==0: return (x*0).sum()
        if mode=="token-mean": return x.sum()/N
        if mode=="seq-mean-token-mean": return (x.sum(1)/ni.clamp(min=1)).sum()/S
        if mode=="seq-mean-token-sum": return x.sum()/S
        if mode=="seq-mean-token-sum-norm": return x.sum()/17.
    nanify=lambda x: np.where(m.numpy()>0,x.detach().numpy(),np.nan)
    ins=dict(logp=nanify(lp),old_logp=nanify(old),rollout_logp=nanify(beh),behave_logp=nanify(beh),ref_logp=nanify(ref),advantages=nanify(A),entropy=nanify(H),mask=m.numpy())
    for mode in ["token-mean","seq-mean-token-mean","seq-mean-token-sum","seq-mean-token-sum-norm"]:
        ag={"mode":mode,"scale":17}
        l=lp-old; r=l.exp(); wmask=m>0
        mean=lambda x:(torch.where(wmask,x,torch.zeros_like(x)).sum(1)/ni.clamp(min=1))[:,None]
        ppo=lambda r,A,lo=.2,hi=.28:torch.maximum(-A*r,-A*r.clamp(1-lo,1+hi))
        dual=lambda x:torch.where(A<0,torch.minimum(x,-1.3*A),x)
        cases=[]
        cases.append(({"kind":"ppo","clip_low":.2,"clip_high":.28,"dual_clip":1.3},dual(ppo(r,A))))
        cases.append(({"kind":"ppo","clip_low":.2,"clip_high":.28,"ratio_cap":1.5,"log_ratio_clamp":.5},torch.maximum(-A*l.clamp(-.5,.5).exp().clamp(max=1.5),-A*l.clamp(-.5,.5).exp().clamp(.8,1.28))))
        s=(lp-lp.detach()+mean(l.detach())).clamp(max=.1).exp()
        cases.append(({"kind":"gspo","clip_low":.05,"clip_high":.06,"log_ratio_clamp_max":.1},ppo(s,A,.05,.06)))
        cases.append(({"kind":"cispo","clip_low":None,"clip_high":.3},-r.detach().clamp(max=1.3)*A*lp))
        tau=torch.where(A>0,torch.tensor(1.,dtype=torch.float64),torch.tensor(1.05,dtype=torch.float64))
        cases.append(({"kind":"sapo","tau_pos":1.,"tau_neg":1.05},-A*4/tau*torch.sigmoid(tau*(r-1))))
        cases.append(({"kind":"kimi15","tau":.1},-A*lp+.05*l**2))
        W=torch.where(wmask,l.detach().clamp(-20,20),torch.zeros_like(l)).sum(1,keepdim=True).clamp(np.log(1e-8),20)
        k=torch.where(A>=0,2.,3.); la=torch.where(A>=0,3.,2.)
        cases.append(({"kind":"vespo","k_pos":2,"lambda_pos":3,"k_neg":3,"lambda_neg":2},-torch.exp(la+k*W-la*W.exp())*A*lp))
        d=lp-beh; sh=lp.detach().exp()-beh.exp(); drop=torch.where(A>0,sh>.1,sh<-.1)
        cases.append(({"kind":"dppo","mask_low":.1,"mask_high":.1,"adv_tau":.7,"kl_tau":.01},torch.where(drop,0.,-.7*A*d.exp())+.01*d**2))
        cases.append(({"kind":"ref_kl","mask_low":.1,"kl_tau":.01},torch.where(sh>=-.1,-(ref-lp.detach())*d.exp(),torch.zeros_like(d))+.01*d**2))
        for p,x in cases:
            for extra in [False,True]:
                y=x; q=dict(p,agg=ag)
                if extra:
                    w=(old-beh).exp().clamp(.8,1.2)
                    ops=(A<0)&(mean((beh-lp).detach())>.05)
                    y=torch.where(ops,torch.zeros_like(x),x)*w-.3*H
                    dd=lp-ref; c=dd.clamp(-.3,.3); kk=(torch.exp(-c)-1+c).clamp(-.04,.04)*torch.exp(l)
                    y=y+.2*kk
                    q.update(opsm={"delta":.05,"against":"rollout_logp"},rollout_is={"form":"tis","low":.8,"high":1.2},entropy_coef=.3,kl={"beta":.2,"kind":"k3","clamp_log":.3,"clamp_out":.04,"is_weighted":True})
                loss=agg(y,mode); g,=torch.autograd.grad(loss,lp,retain_graph=True)
                out=ask("loss.pg",q,ins); cmp((p,mode,extra,"loss"),out["loss"],loss); cmp((p,mode,extra,"grad"),out["grad_logp"],g); n+=2
    # gmpo / seq_product
    if N>0:
        l=lp-old; Ai=torch.where(m>0,A,0).sum(1)/ni.clamp(min=1)
        cl=l.clamp(-.1,.1); z=torch.where(A>0,torch.minimum(l,cl),torch.maximum(l,cl))
        x=-Ai*torch.exp(torch.where(m>0,z,0).sum(1)/ni.clamp(min=1)); loss=(x*(ni>0)).sum()/S; g,=torch.autograd.grad(loss,lp)
        out=ask("loss.pg",{"kind":"gmpo","clip_log_low":.1,"clip_log_high":.1,"agg":{"mode":"seq-mean"}},ins); cmp("gmpo",out["loss"],loss); cmp("gmpo g",out["grad_logp"],g)
        r=torch.exp(torch.where(m>0,lp-old,0).sum(1)); x=torch.maximum(-Ai*r,-Ai*r.clamp(.8,1.2)); loss=(x*(ni>0)).sum()/S; g,=torch.autograd.grad(loss,lp)
        out=ask("loss.pg",{"kind":"seq_product","clip_low":.2,"clip_high":.2,"agg":{"mode":"seq-mean"}},ins); cmp("sp",out["loss"],loss); cmp("sp g",out["grad_logp"],g)
    V=5; s_=torch.randn(B,L,V,dtype=torch.float64,requires_grad=True); t_=torch.randn(B,L,V,dtype=torch.float64)
    for beta in [0.,.3,1.]:
        s=(s_/1.4).log_softmax(-1); t=(t_/1.4).log_softmax(-1)
        kl=lambda a,b:(a.exp()*(a-b)).sum(-1)
        M=torch.logsumexp(torch.stack([t+np.log(max(beta,1e-300)),s+np.log(max(1-beta,1e-300))]),0)
        x= kl(t,s) if beta==0 else kl(s,t) if beta==1 else beta*kl(t,M)+(1-beta)*kl(s,M)
        loss=(x*m).sum()/N.clamp(min=1); g,=torch.autograd.grad(loss,s_)
        out=ask("loss.jsd",{"beta":beta,"temperature":1.4},dict(student_logits=s_.detach(),teacher_logits=t_,mask=m.numpy())); cmp("jsd",out["loss"],loss); cmp("jsd g",out["grad_student"],g); n+=2
    # grpo brute
    r=rng.integers(0,3,size=B).astype(float); gid=rng.integers(0,2,size=B)
    exp=np.zeros(B)
    for g0 in set(gid):
        ix=[i for i in range(B) if gid[i]==g0]; v=r[ix]
        for i in ix:
            exp[i]= r[i]/(1+1e-6) if len(ix)==1 else (r[i]-v.mean())/(v.std(ddof=1)+1e-6)
    out=ask("adv.grpo",{"scale":"group_std","ddof":1,"eps":1e-6,"singleton":"raw"},dict(rewards=r,group={"dtype":"i64","shape":[int(B)],"data":gid.tolist()},mask=m.numpy()))
    cmp("grpo",out["advantages"],exp[:,None]*m.numpy())
print(f"{n} losses and gradients agree")
